"""Runs a command while processes below it stand still at random, as they do on a machine that is
out of memory or asleep: ``python -m tests.support.faults.stalls SEED COMMAND...``

Each stall is far below every deadline of lmx, so that nobody may be hurt by it. A test that fails
so depends on which of two things comes first, or lmx does.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from typing import Final

import psutil

_EVERY_S: Final = 0.7
"""Between two stalls."""
_STALL_S: Final = (0.05, 2.0)
_AT_A_TIME: Final = 3


def _stop_one(root: psutil.Process, draw: random.Random) -> int | None:
    """Stop a process below the root that was not stopped by somebody else. Return which."""
    below = root.children(recursive=True)
    if not below:
        return None
    chosen = draw.choice(below)
    try:
        if chosen.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return None
        os.kill(chosen.pid, signal.SIGSTOP)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
    return chosen.pid


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def run(seed: int, command: list[str]) -> int:
    """Run the command, and return how it ended. A process that a test has stopped itself is left
    alone, unless the test stops it while it stands still anyway."""
    draw = random.Random(seed)
    stalled: dict[int, float] = {}
    stalls = 0
    with subprocess.Popen(command) as started:
        root = psutil.Process(started.pid)
        next_s = time.monotonic()
        try:
            while started.poll() is None:
                now_s = time.monotonic()
                for pid in [pid for pid, until_s in stalled.items() if now_s >= until_s]:
                    del stalled[pid]
                    _continue(pid)
                if now_s >= next_s and len(stalled) < _AT_A_TIME:
                    next_s = now_s + draw.uniform(0, 2 * _EVERY_S)
                    stopped = _stop_one(root, draw)
                    if stopped is not None:
                        stalled[stopped] = now_s + draw.uniform(*_STALL_S)
                        stalls += 1
                time.sleep(0.02)
        except psutil.NoSuchProcess:
            pass
        finally:
            for pid in stalled:
                _continue(pid)
    print(f"{stalls} stalls, seed {seed}")
    return started.returncode


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
