"""What lmx takes of the processor while nobody asks it anything.

A tiny model, and then a dozen of them, are loaded and have each answered once, with the deadlines
that users have. ``make bench-idle`` measures this checkout for some minutes; ``AGAINST=FOLDER``,
another checkout with a ``.venv`` of its own, in turns with it.
"""

import json
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one, median_of, print_medians
from tests.bench.rigs.report import Section

TURNS = 3
SETTLED_S = 12.0
DURATION_S = 30.0
MODELS = 12
_TEXT = (
    f"One model, or {MODELS}, are loaded and nobody asks: processor time in a second of the "
    "supervisor, the router and the workers, and how often they are woken; the processes that "
    f"inspect, render and decode are left out. Medians of {TURNS} turns of {DURATION_S:g} s "
    "(`make bench-idle`; `AGAINST=` another checkout measures both in turns). A clock of the "
    "supervisor that ticked ten times a second took 14.1 ms/s instead of 5.9 with one model; a "
    "router that sleeps until it has counts to report took 8.4 ms/s instead of 9.3, side by side "
    "at a load of 40, which makes each wake-up dearer."
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

    names = [f"m{number}" for number in range(MODELS)]
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "llama")
        models = [{"id": each, "source": str(model), "preload": each == "m0"} for each in names]
        found: dict[str, float] = {}
        with rig({"models": models, "timing": DEFAULTS}) as lmx:
            lmx.wait_state("m0", "ready")
            for count, begin in ((1, 0), (MODELS, 1)):
                for each in names[begin:count]:
                    _answer(lmx.url, each)
                workers = [lmx.worker(each)["pid"] for each in names[:count]]
                used = _while_nobody_asks(
                    {
                        "supervisor": [lmx.running("lmx.supervisor")[0].pid],
                        "router": [lmx.running("lmx.router")[0].pid],
                        "workers": workers,
                    }
                )
                found |= {f"{count}: {name}": value for name, value in used.items()}
    return found


def _answer(url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "a", "max_tokens": 4}).encode()
    asked = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=300).read()


def _while_nobody_asks(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    processes = {name: [psutil.Process(pid) for pid in each] for name, each in pids.items()}
    time.sleep(SETTLED_S)
    before = {name: [*map(_used, each)] for name, each in processes.items()}
    began_s = time.monotonic()
    time.sleep(DURATION_S)
    after = {name: [*map(_used, each)] for name, each in processes.items()}
    lasted_s = time.monotonic() - began_s
    found = {"together, ms/s": 0.0}
    for name in processes:
        pairs = list(zip(after[name], before[name], strict=True))
        used_s = sum(now[0] - then[0] for now, then in pairs)
        found[f"{name}, ms/s"] = 1000 * used_s / lasted_s
        found[f"{name}, wake-ups/s"] = sum(now[1] - then[1] for now, then in pairs) / lasted_s
        found["together, ms/s"] += 1000 * used_s / lasted_s
    return found


def _used(process: psutil.Process) -> tuple[float, int]:
    """Return processor time, and how often a thread of it has slept. That of processes which it
    started and that have ended is included where the system is not Linux and knows it."""
    if not psutil.LINUX:
        times = process.cpu_times()
        used_s = times.user + times.system + times.children_user + times.children_system
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
