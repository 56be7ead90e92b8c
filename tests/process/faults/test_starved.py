"""What has no processor is slow, and nobody ends it for that."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lmx.protocol.messages.control import LoadModel
from tests.support.rigs.rig import rig, scripted, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are put on one processor"),
    pytest.mark.long,
]

LIMIT_S = 2.0
LOAD_CPU_S = 1.5
SPINNERS = 6


@contextmanager
def busy_processor() -> Iterator[int]:
    """Keep one processor busy with other programs; gives its number."""
    number = min(os.sched_getaffinity(0))
    spinners = []
    try:
        for _ in range(SPINNERS):
            spinners.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(spinners[-1].pid, {number})
        yield number
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def confine(pid: int, processor: int, nice: int = 0) -> None:
    """Let all threads of a process run on one processor only, and with less right to it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # A thread that has ended meanwhile.
            os.sched_setaffinity(int(task.name), {processor})
            if nice:
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def test_a_load_and_a_router_without_a_processor_are_waited_for() -> None:
    model = scripted(
        "alpha", preload=False, options={"load_cpu_s": LOAD_CPU_S, "load_s": 1.0},
        load_stall_timeout_s=LIMIT_S,
    )  # fmt: skip
    with rig({"models": [model], "timing": {"beat_timeout_s": LIMIT_S}}) as lmx:
        router = lmx.status()["router"]["pid"]
        with busy_processor() as processor:
            with lmx.held_load("alpha"):
                lmx.ask(LoadModel("alpha"))
                worker = lmx.wait_state("alpha", "loading")["pid"]
                confine(worker, processor)
                confine(router, processor, nice=19)
                began_s = time.monotonic()
            lmx.wait_state("alpha", "ready")
            assert time.monotonic() - began_s > LIMIT_S, "it was not starved at all"
            wait_until(lambda: time.monotonic() - began_s > 3 * LIMIT_S, "the router has its limit")
        assert lmx.events("worker.exited") == lmx.events("router.exited") == []
        assert lmx.status()["router"]["pid"] == router
        assert lmx.wait_state("alpha", "ready")["pid"] == worker
