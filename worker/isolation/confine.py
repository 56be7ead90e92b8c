"""What such a process does to itself before it takes its first request. It imports little, because
renderers take as little memory as they can."""

import resource
import signal
import socket
import sys
from pathlib import Path


def ignore_terminal() -> None:
    """A Ctrl-C or a hang-up of the terminal reaches every process: the worker decides what ends."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def limit_memory(max_bytes: int) -> None:
    """Make allocations of more than ``max_bytes`` beyond what is there already fail at once. Not on
    macOS, which counts other mappings too: there the worker watches the process."""
    if sys.platform != "linux":
        return
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return  # A sandbox without /proc: the worker's checks are left.
    limit_bytes = pages * resource.getpagesize() + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def end_after(timeout_s: float) -> None:
    """End this process after ``timeout_s``, also inside a call that never comes back to Python; 0:
    never. The worker does that itself, unless it has ended meanwhile."""
    signal.setitimer(signal.ITIMER_REAL, timeout_s)


def read_exactly(stream: socket.socket, length: int) -> bytearray | None:
    """Return ``length`` bytes; None if the worker is gone."""
    data = bytearray(length)
    rest = memoryview(data)
    while rest.nbytes:
        count = stream.recv_into(rest)
        if not count:
            return None
        rest = rest[count:]
    return data
