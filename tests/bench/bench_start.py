"""What lmx needs from its first process to its first answer over HTTP, and to swap models.

Two starts: without a model, to the list of models, and with one, to the end of a chat answer of
one token. Beside the second stands mlx_lm.server with the same model. Then two models of which one
has room are asked in turns, without a spare worker and with one. ``make bench-start`` measures
this checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv`` of its own, in turns with it.
"""

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one, median_of, print_medians
from tests.bench.rigs.report import Section

TURNS = 5
LIMIT_S = 60.0
SWAPS = 3
PAUSE_S = 6.0
ROOM = "700 MiB"
"""There is room for one of two tiny models."""
_TEXT = (
    "From the first process to an answer over HTTP: medians of "
    f"{TURNS} turns (`make bench-start`; `AGAINST=` another checkout measures both in turns). "
    "Without a model the answer is the list of models; with one it is a chat answer of one token "
    "by the tiny model, which lmx has been started to load. The processor time is that of all "
    "processes of the tree, those that have ended included, until the answer is there; their "
    "compiled modules (`.pyc`) and mlx's kernels are there already. A swap is from the request for "
    "the model that is not loaded to its answer, with pauses in which a spare worker imports; its "
    "processor time is what is used within it. What [imports.md](decisions/imports.md) brought, "
    "when it was done, in processor time: 1.19 s without a model instead of 1.42, and 2.22 s with "
    "one instead of 2.96. A later version (dataclasses' texts at first use, an installation's own "
    "file of exports, no rich without a terminal) needed 0.93 of the time before it with a model: "
    "three pairs that ran at the same time, at a load of 40."
)


def measure(_model: Path) -> Section:
    """Measure this checkout; no model is needed."""
    turns = in_turns(__file__, [ROOT], TURNS)[ROOT]
    rows = [["", "median"], *([name, f"{median_of(turns, name):.2f}"] for name in turns[0])]
    for row in rows[1:]:
        print(*row, flush=True)
    return Section("A start", _TEXT, rows)


def main() -> None:
    """Print the medians of the turns of each checkout."""
    if measured_one(_measure):
        return
    print_medians(in_turns(__file__, asked(), TURNS), digits=2)


def _measure() -> dict[str, float]:
    from tests.support.models.tiny_models import make_tiny_model
    from tests.support.rigs.rig import scripted

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "llama")
        name_as_published(model / "model.safetensors")
        with _lmx(scripted("one")) as port:
            found |= _timed("without a model", lambda: _answers(port, "GET", "/v1/models"))
        with _lmx({"id": "m", "source": str(model)}) as port:
            chat = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
            path = "/v1/chat/completions"
            found |= _timed("with a model", lambda: _answers(port, "POST", path, chat), split=True)
        with _mlx_lm(model) as port:
            chat["model"] = "default_model"
            found |= _timed("mlx_lm.server", lambda: _answers(port, "POST", path, chat))
        found |= _swaps("a swap", model, spare_worker=False)
        found |= _swaps("a swap with a spare worker", model, spare_worker=True)
    return found


def _swaps(what: str, model: Path, *, spare_worker: bool) -> dict[str, float]:
    from tests.support.rigs.rig import PATIENT, rig

    config = {
        "memory": {"budget_bytes": ROOM, "min_residency_s": 0, "spare_worker": spare_worker},
        "models": [{"id": name, "source": str(model), "preload": name == "a"} for name in "ab"],
        "timing": PATIENT,
    }
    times_s, used_s = [], []
    with rig(config) as lmx:
        lmx.wait_state("a", "ready")
        port = lmx.status()["router"]["port"]
        for number in range(SWAPS):
            time.sleep(PAUSE_S)
            before_s, began_s = sum(_used().values()), time.monotonic()
            body = {"model": "ba"[number % 2], "prompt": "a", "max_tokens": 1}
            if not _answers(port, "POST", "/v1/completions", body):
                raise TimeoutError("the model was not loaded in time")
            times_s.append(time.monotonic() - began_s)
            used_s.append(sum(_used().values()) - before_s)
    return {
        f"{what}: answer, s": statistics.median(times_s),
        f"{what}: processor, s": statistics.median(used_s),
    }


def name_as_published(weights: Path) -> None:
    """Name tensors as the hub's models do, for mlx_lm: mlx-vlm takes both."""
    import mlx.core as mx

    tensors = mx.load(str(weights))
    assert isinstance(tensors, dict)
    mx.eval(tensors)
    named = {name.removeprefix("language_model."): value for name, value in tensors.items()}
    mx.save_safetensors(str(weights), named, {"format": "mlx"})


def _timed(what: str, answered: Callable[[], bool], *, split: bool = False) -> dict[str, float]:
    """Return wall and processor time until something is ``answered``; what has been started is this
    process's children. ``split`` adds the times of each kind of process."""
    began_s = time.monotonic()
    while not answered():
        if time.monotonic() > began_s + LIMIT_S:
            raise TimeoutError(f"no answer within {LIMIT_S:g} s")
        time.sleep(0.005)
    first_s = time.monotonic() - began_s
    used = _used()
    found = {f"{what}: answer, s": first_s, f"{what}: processor, s": sum(used.values())}
    if split:
        found |= {f"{what}: {name}, processor, s": used_s for name, used_s in used.items()}
    return found


def _used() -> dict[str, float]:
    """Return the processor time of all that this process has started, by the kind of process, those
    that have ended included."""
    used: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            times, name = process.cpu_times(), _kind(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        used_s = times.user + times.system + times.children_user + times.children_system
        used[name] = used.get(name, 0.0) + used_s
    return used


def _kind(command: list[str]) -> str:
    modules = [part for part in command if part.startswith("lmx.")]
    return modules[0].split(".")[1 if len(modules[0].split(".")) == 2 else -1] if modules else "it"


@contextmanager
def _lmx(model: dict[str, Any]) -> Iterator[int]:
    from tests.support.rigs.rig import PATIENT, Rig

    port = free_port()
    with closing(Rig({"server": {"port": port}, "models": [model], "timing": PATIENT})) as lmx:
        lmx.up(wait=False)
        yield port


@contextmanager
def _mlx_lm(model: Path) -> Iterator[int]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield port
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, method: str, path: str, body: Any = None) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    content = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == 200:
            return True
        if answer.status not in (503, 504):
            raise ValueError(f"{answer.status}: {text.decode()}")
        return False
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
