"""What ``doctor --bench`` and ``--sleep`` measure: speed, memory that comes back, pauses, a sleep.

It runs MLX in processes of its own. Nothing of lmx must be busy meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.memory.system import read_footprint, read_memory

_MIB: Final = 1024**2
_CHILD_S: Final = 120.0
_BACK_S: Final = 10.0
_LOOK_S: Final = 0.1
_BACK_SHARE: Final = 0.75
_PAUSES_S: Final = (0.2, 1.5, 5.0)
_SLEEP_S: Final = 60.0

_PROGRAM: Final = """
import json, sys, time
asked = json.load(sys.stdin)
import mlx.core as mx
gpu = mx.metal.is_available()
def say(**values):
    print(json.dumps(values), flush=True)
a = mx.random.normal((asked["side"], asked["side"]))
mx.eval(a)
def product():
    began = time.perf_counter()
    mx.eval(a @ a)
    return time.perf_counter() - began
product()
best = min(product() for _ in range(5))
held = mx.ones((asked["mib"], 262144))
mx.eval(held)
if gpu and asked["wired"]:
    mx.set_wired_limit(mx.get_active_memory())
def read():
    began = time.perf_counter()
    mx.eval(held.sum())
    return time.perf_counter() - began
read()
busy = min(read() for _ in range(3))
pauses = []
for pause in asked["pauses"]:
    time.sleep(pause)
    pauses.append(read() - busy)
say(device=str(mx.default_device()), gflops=2 * asked["side"] ** 3 / best / 1e9, pauses=pauses)
time.sleep(600)
"""
"""A process that holds memory of the device until it is ended."""


def bench(*, gpu: bool = sys.platform == "darwin") -> list[Line]:
    """Return what was measured. It takes some seconds, and a minute on a Mac."""
    held_mib = 2048 if gpu else 256
    lines = []
    for number, wired in ((signal.SIGTERM, False), (signal.SIGKILL, gpu)):
        # The interval of the refreshing is read when a process first uses mlx.
        refresh_ms = 500 if wired else 0
        before = read_memory()
        pauses = _PAUSES_S if gpu else ()
        with _holder(held_mib, pauses, refresh_ms, wired=wired) as (process, said):
            if said is None:
                return [Line("bench", "mlx computes", "it does not", Verdict.BAD, "make install")]
            footprint = read_footprint(process.pid)
            during = read_memory()
            process.send_signal(number)
            process.wait()
            took_s, back = _until_back(before.available_bytes, during.available_bytes)
        held = 0 if footprint is None else footprint.held_bytes
        name = "wired" if wired else "not wired"
        lines += [
            Line(
                "speed", f"{said['device']}, float32", f"{said['gflops']:.0f} GFLOP/s", Verdict.OK
            ),
            Line(
                "footprint", f"{held_mib} MiB and more", format_bytes(held),
                Verdict.OK if held >= held_mib * _MIB else Verdict.BAD,
            ),
            Line(
                "back", f"memory comes back after {signal.Signals(number).name} ({name})",
                f"after {took_s:.1f} s" if back else f"not within {_BACK_S:g} s",
                Verdict.OK if back else Verdict.WARNING,
            ),
        ]  # fmt: skip
        lines += [
            Line(
                "pause", f"a pause of {pause:g} s costs nothing ({name}, refresh {refresh_ms} ms)",
                f"{late * 1000:.0f} ms",
                Verdict.OK if late < 0.05 else Verdict.NOTE,
            )
            for pause, late in zip(pauses, said["pauses"], strict=True)
        ]  # fmt: skip
    return lines


@contextmanager
def _holder(
    mib: int, pauses: tuple[float, ...], refresh_ms: int, *, wired: bool
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any] | None]]:
    """Run the program; yield it with what it said, None if it has failed."""
    environment = {**os.environ, "MLX_METAL_RESIDENCY_REFRESH_INTERVAL_MS": str(refresh_ms)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        json.dump({"side": 1024, "mib": mib, "pauses": pauses, "wired": wired}, process.stdin)
        process.stdin.close()
        text = process.stdout.readline()
        yield process, json.loads(text) if text else None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _until_back(before_bytes: int, during_bytes: int) -> tuple[float, bool]:
    """Return when most of the memory was available again, and whether it was at all."""
    enough = during_bytes + (before_bytes - during_bytes) * _BACK_SHARE
    began_s = time.monotonic()
    while (took_s := time.monotonic() - began_s) < _BACK_S:
        if read_memory().available_bytes >= enough:
            return took_s, True
        time.sleep(_LOOK_S)
    return took_s, False


def sleep_once() -> Line:
    """Put this Mac to sleep, and say whether the clock that deadlines use stood still. Somebody
    must wake it."""
    assumption = "the clock of deadlines stands still while the Mac sleeps"
    if sys.platform != "darwin":
        return Line("clock", assumption, "this is no Mac", Verdict.NOTE)
    monotonic_s, wall_s = time.monotonic(), time.time()
    subprocess.run(["/usr/bin/pmset", "sleepnow"], check=False, capture_output=True)
    while time.time() - wall_s < _SLEEP_S and time.monotonic() - monotonic_s < _SLEEP_S:
        time.sleep(1.0)
    slept_s = (time.time() - wall_s) - (time.monotonic() - monotonic_s)
    return Line(
        "clock", assumption, f"it slept for about {slept_s:.0f} s",
        Verdict.OK if slept_s > 1 else Verdict.WARNING,
    )  # fmt: skip
