"""What lmx takes of the processor while nobody asks it anything.

One tiny model is loaded and has answered once, with the deadlines that users have. ``make
bench-idle`` measures this checkout for a minute; ``AGAINST=FOLDER``, another checkout with a
``.venv`` of its own, in turns with it.
"""

import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one, median_of, print_medians
from tests.bench.rigs.report import Section

TURNS = 3
SETTLED_S = 12.0
DURATION_S = 30.0
_TEXT = (
    "One model is loaded and nobody asks: processor time in a second, of all processes, and how "
    f"often each is woken. Medians of {TURNS} turns of {DURATION_S:g} s (`make bench-idle`; "
    "`AGAINST=` another checkout measures both in turns)."
)


def measure(_model: Path) -> Section:
    """Measure this checkout; no model is needed."""
    turns = in_turns(__file__, [ROOT], TURNS)[ROOT]
    rows = [["", "median"], *([name, f"{median_of(turns, name):.2f}"] for name in turns[0])]
    for row in rows[1:]:
        print(*row, flush=True)
    return Section("Idle", _TEXT, rows)


def main() -> None:
    """Print the medians of the turns of each checkout."""
    if measured_one(_measure):
        return
    print_medians(in_turns(__file__, asked(), TURNS), digits=2)


def _measure() -> dict[str, float]:
    from tests.support.models.tiny_models import make_tiny_model
    from tests.support.rigs.rig import DEFAULTS, rig

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "llama")
        config = {"models": [{"id": "m", "source": str(model)}], "timing": DEFAULTS}
        with rig(config) as lmx:
            lmx.wait_state("m", "ready")
            body = b'{"model": "m", "prompt": "a", "max_tokens": 4}'
            kind = {"Content-Type": "application/json"}
            asked = urllib.request.Request(f"{lmx.url}/completions", body, kind)
            urllib.request.urlopen(asked, timeout=90).read()
            processes = {
                name: psutil.Process(pid)
                for name, module in (
                    ("supervisor", "lmx.supervisor"),
                    ("router", "lmx.router"),
                    ("worker", "lmx.worker"),
                )
                for pid in (lmx.running(module)[0].pid,)
            }
            time.sleep(SETTLED_S)
            before = {name: _used(process) for name, process in processes.items()}
            began_s = time.monotonic()
            time.sleep(DURATION_S)
            after = {name: _used(process) for name, process in processes.items()}
            lasted_s = time.monotonic() - began_s
    found = {"all, ms/s": 0.0}
    for name in processes:
        used_s, woken = (now - then for now, then in zip(after[name], before[name], strict=True))
        found[f"{name}, ms/s"] = 1000 * used_s / lasted_s
        found[f"{name}, wake-ups/s"] = woken / lasted_s
        found["all, ms/s"] += 1000 * used_s / lasted_s
    return found


def _used(process: psutil.Process) -> tuple[float, int]:
    """Return processor time, that of processes which it started and that have ended included, and
    how often a thread of it has slept."""
    times = process.cpu_times()
    used_s = times.user + times.system + times.children_user + times.children_system
    if not psutil.LINUX:
        return used_s, process.num_ctx_switches().voluntary
    # The kernel's count of ticks leaves out short wake-ups or counts them whole.
    tasks = [Path(f"/proc/{process.pid}/task/{thread.id}") for thread in process.threads()]
    used_s = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    switches = 0
    for task in tasks:
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                switches += int(line.split()[1])
    return used_s, switches


if __name__ == "__main__":
    main()
