"""What ``doctor --bench`` measures of the device on which MLX computes, in processes of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from lmx.supervisor.cli.doctor.lines import INSTALL_AGAIN, Line, Verdict
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.memory.system import read_footprint, read_memory

_MIB: Final = 1024**2
_ANSWER_S: Final = 120.0
_BACK_S: Final = 10.0
_LOOK_S: Final = 0.1
_MISSING_PART: Final = 4
"""A loss below one part in this many of what the process held does not count."""

_LITTLE_LATE_S: Final = 0.05
_PAUSES_S: Final = (0.2, 1.5, 5.0, 30.0)
_REFRESH: Final = "MLX_METAL_RESIDENCY_REFRESH_INTERVAL_MS"
_OFF: Final = 0.25
"""Rows that decode together may differ by this share of the spread of their logits."""

_BEGIN: Final = """
import ctypes, ctypes.util, json, os, signal, sys, time
library = ctypes.util.find_library("openblas") if sys.platform == "linux" else None
if library:  # As in a worker: before mlx.
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
import mlx.core as mx
gpu = mx.metal.is_available()
def asked():
    return json.loads(sys.stdin.readline())
def say(**values):
    print(json.dumps(values), flush=True)
"""

_HOLD: Final = (
    _BEGIN
    + """
wish = asked()
side = wish["side"]
a = mx.random.normal((side, side))
mx.eval(a)
def product():
    began = time.perf_counter()
    mx.eval(a @ a)
    return time.perf_counter() - began
product()
best = min(product() for _ in range(5))
held = mx.ones((wish["mib"], 262144))
mx.eval(held)
if gpu and wish["wired"]:
    mx.set_wired_limit(mx.get_active_memory())
def give_back(*_):
    global a, held
    a = held = None
    mx.synchronize()
    if gpu:
        mx.set_wired_limit(0)
    mx.clear_cache()
    os._exit(0)
signal.signal(signal.SIGTERM, give_back)
def read():
    began = time.perf_counter()
    mx.eval(held.sum())
    return time.perf_counter() - began
read()
busy = min(read() for _ in range(3))
pauses = []
for pause in wish["pauses"]:
    time.sleep(pause)
    pauses.append(read() - busy)
say(device=str(mx.default_device()), gflops=2 * side**3 / best / 1e9, pauses=pauses)
time.sleep(600)
"""
)
"""Holds memory of the device until it is ended. SIGTERM has it give the memory back first."""

_DECODE: Final = (
    _BEGIN
    + """
wish = asked()
size = wish["size"]
kind = mx.bfloat16 if gpu else mx.float32
mx.random.seed(1)
layers = []
for _ in range(wish["layers"]):
    weights = mx.random.normal((size, size)) * size**-0.5
    layers.append(mx.quantize(weights.astype(kind)))
    mx.eval(layers[-1])
def logits(x):
    for weights, scales, biases in layers:
        normed = mx.fast.rms_norm(x, None, 1e-5)
        x = x + mx.tanh(mx.quantized_matmul(normed, weights, scales, biases))
    return x
rows = mx.random.normal((2, size)).astype(kind)
alone = mx.concatenate([logits(rows[:1]), logits(rows[1:])]).astype(mx.float32)
both = logits(rows).astype(mx.float32)
spread = mx.linalg.norm(alone - alone.mean(axis=-1, keepdims=True), axis=-1)
off = mx.max(mx.linalg.norm(both - alone, axis=-1) / spread).item()
same = bool(mx.all(mx.argmax(both, axis=-1) == mx.argmax(alone, axis=-1)).item())
say(off=off, same=same)
while True:
    took = asked()["s"]
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < took:
        mx.eval(logits(rows[:1]))
        steps += 1
    say(rate=steps / (time.perf_counter() - began))
"""
)
"""Reads 4-bit weights at each step, as decoding does: alone, then whenever it is asked to."""

_KERNEL: Final = (
    _BEGIN
    + '''
wish = asked()
kernel = mx.fast.metal_kernel(
    name="lmx_doctor", input_names=["inp", "count"], output_names=["out"],
    source="""
        uint place = thread_position_in_grid.x;
        float x = inp[place];
        for (uint step = 0; step < count[0]; step++) {
            x = x * 1.0000001f + 0.0000001f;
        }
        out[place] = x;
    """,
)
inp = mx.ones((256,))
def run(count):
    began = time.perf_counter()
    mx.eval(kernel(
        inputs=[inp, mx.array([count], dtype=mx.uint32)], grid=(256, 1, 1),
        threadgroup=(256, 1, 1), output_shapes=[(256,)], output_dtypes=[mx.float32],
    )[0])
    return time.perf_counter() - began
try:
    run(1000)
    took = run(10_000_000)
    say(took=run(min(4_000_000_000, int(10_000_000 * wish["s"] / took))))
except Exception as error:
    say(error=str(error)[:300])
'''
)
"""Keeps a GPU busy with one kernel."""


class Child:
    """A process that runs a program with MLX, and answers in lines of JSON."""

    def __init__(self, program: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def send(self, **asked: Any) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self, limit_s: float = _ANSWER_S) -> dict[str, Any] | None:
        """Return its next line; None if it has ended, or says nothing for ``limit_s``."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            return None
        found: dict[str, Any] = json.loads(line)
        return found


def held_memory(held_mib: int, *, gpu: bool) -> list[Line]:
    """Return how memory of the device is counted, what a pause costs, and when the memory comes
    back after the process has ended: by itself, and killed."""
    ways = [(signal.SIGTERM, False, 0), (signal.SIGKILL, False, 0)]
    if gpu:
        ways = [(signal.SIGTERM, False, 0), (signal.SIGTERM, True, 0), (signal.SIGKILL, True, 500)]
    lines: list[Line] = []
    for number, wired, refresh_ms in ways:
        found = _held(held_mib, number, _PAUSES_S if gpu else (), refresh_ms, wired=wired)
        if found is None:
            return [Line("bench", "mlx computes", "it does not", Verdict.BAD, INSTALL_AGAIN)]
        lines += found
    return lines


def _held(
    held_mib: int, number: signal.Signals, pauses: tuple[float, ...], refresh_ms: int, *,
    wired: bool,
) -> list[Line] | None:  # fmt: skip
    before = read_memory()
    # The interval of the refreshing is read when a process first uses mlx.
    with Child(_HOLD, {_REFRESH: str(refresh_ms)}) as child:
        child.send(side=1024, mib=held_mib, pauses=pauses, wired=wired)
        answer = child.receive(_ANSWER_S + sum(pauses))
        if answer is None:
            return None
        footprint, during = read_footprint(child.process.pid), read_memory()
        child.process.send_signal(number)
        child.process.wait(_ANSWER_S)
        held_bytes = 0 if footprint is None else footprint.held_bytes
        took_s, missing_bytes = _until_back(before, held_bytes)
    name = "wired" if wired else "not wired"
    used_bytes = during.used_bytes - before.used_bytes
    measured = f"{format_bytes(used_bytes)} more in use"
    if during.wired_bytes is not None and before.wired_bytes is not None:
        measured += f", {format_bytes(during.wired_bytes - before.wired_bytes)} more wired"
    back = f"after {took_s:.1f} s"
    if missing_bytes:
        back = f"not within {_BACK_S:g} s: {format_bytes(missing_bytes)} are missing"
    return [
        Line(
            "speed", f"{answer['device']}, float32", f"{answer['gflops']:.0f} GFLOP/s", Verdict.OK
        ),
        Line(
            "footprint", f"{held_mib} MiB and more ({name})", format_bytes(held_bytes),
            Verdict.OK if held_bytes >= held_mib * _MIB else Verdict.BAD,
        ),
        Line(
            "counted", f"the machine's figures show those {held_mib} MiB ({name})", measured,
            Verdict.OK if used_bytes >= held_mib * _MIB // 2 else Verdict.NOTE,
        ),
        Line(
            "back", f"memory comes back after {number.name} ({name})", back,
            Verdict.WARNING if missing_bytes else Verdict.OK,
            "start the machine again if it stays so; please report it" if missing_bytes else "",
        ),
        *(
            Line(
                "pause", f"a pause of {pause:g} s costs nothing ({name}, refresh {refresh_ms} ms)",
                f"{late_s * 1000:.0f} ms",
                Verdict.OK if late_s < _LITTLE_LATE_S else Verdict.NOTE,
            )
            for pause, late_s in zip(pauses, answer["pauses"], strict=True)
        ),
    ]  # fmt: skip


def _until_back(before: MemoryReading, held_bytes: int) -> tuple[float, int]:
    """Return when most of the memory was back, and how much is missing: 0 if it was."""
    began_s = time.monotonic()
    while True:
        took_s, missing_bytes = time.monotonic() - began_s, _missing(before, read_memory())
        if missing_bytes <= held_bytes // _MISSING_PART:
            return took_s, 0
        if took_s >= _BACK_S:
            return took_s, missing_bytes
        time.sleep(_LOOK_S)


def _missing(before: MemoryReading, now: MemoryReading) -> int:
    """Return how much less is available. What is missing stays wired; the rest is what other
    programs have taken."""
    missing_bytes = before.available_bytes - now.available_bytes
    if before.wired_bytes is not None and now.wired_bytes is not None:
        missing_bytes = min(missing_bytes, now.wired_bytes - before.wired_bytes)
    return max(0, missing_bytes)


def decoding(size: int, layers: int, seconds: float) -> list[Line]:
    """Return whether rows come out the same alone and together, and how two processes share the
    device."""
    with Child(_DECODE) as one, Child(_DECODE) as other:
        for child in (one, other):
            child.send(size=size, layers=layers)
        trials = [child.receive() for child in (one, other)]
        one.send(s=seconds)
        rates = [one.receive()]
        for child in (one, other):
            child.send(s=seconds)
        rates += [child.receive() for child in (one, other)]
    if None in trials or None in rates:
        return [Line("bench", "mlx computes", "it does not", Verdict.BAD, INSTALL_AGAIN)]
    trial = trials[0] or {}
    alone, first, second = (rate["rate"] for rate in rates if rate is not None)
    fits = trial["off"] <= _OFF
    shared = min(first, second) >= alone / 4
    token = "the same likeliest token" if trial["same"] else "another likeliest token"
    return [
        Line(
            "batch",
            "two rows have the same logits alone and together",
            f"{trial['off']:.3f} of their spread apart, {token}",
            Verdict.OK if fits else Verdict.WARNING,
            ""
            if fits
            else "such a model decodes each row alone (batching.probe_failed in its log): "
            "please report it",
        ),
        Line(
            "together",
            "two workers that decode at once share the device",
            f"{first:.0f} and {second:.0f} steps/s at once, {alone:.0f} alone",
            Verdict.OK if shared else Verdict.NOTE,
            "" if shared else "a group with swap: true runs one of its models at a time",
        ),
    ]


def long_kernel(seconds: float) -> Line:
    """Return what becomes of a kernel that keeps the GPU busy for this long. Only on a GPU."""
    assumption = f"a kernel of {seconds:g} s runs, or fails as an exception"
    with Child(_KERNEL) as child:
        child.send(s=seconds)
        return judge_kernel(assumption, child.receive())


def judge_kernel(assumption: str, answer: Mapping[str, Any] | None) -> Line:
    """Judge what the process answered, None if it ended without a word. Pure."""
    if answer is None:
        fix = "a time-out of the GPU would end a worker without a word; please report it"
        return Line("kernel", assumption, "its process ended", Verdict.WARNING, fix)
    if "error" in answer:
        fix = "lower max_decode_stall_s if streams end with such errors; please report it"
        return Line("kernel", assumption, f"an exception: {answer['error']}", Verdict.NOTE, fix)
    return Line("kernel", assumption, f"it ran for {answer['took']:.1f} s", Verdict.OK)
