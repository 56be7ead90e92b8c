"""The process's limit of open files, and what is said when it is reached."""

import asyncio
import errno
import logging
import resource
import time
from typing import Any, Final

from lmx.protocol.host.memory import sysctl_number

_OPEN_FILES: Final = 65_536
"""How many open files are requested, up to what is allowed. macOS gives a process 256, each
connection takes one, and zmq aborts the process when it gets none."""

_KERNEL_LIMIT: Final = "kern.maxfilesperproc"
"""macOS accepts a higher limit than this and reports it, but holds to this one: 10,240 with 8 GB of
memory, 61,440 with 16 GB."""

UNLIMITED: Final = 2**31

_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_REPORT_EVERY_S: Final = 60.0

log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raise the soft limit of open files as far as it is allowed. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = file_limit(_OPEN_FILES, hard, sysctl_number(_KERNEL_LIMIT))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files_limit() -> int:
    """Return how many files this process may open; :data:`UNLIMITED` if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return file_limit(UNLIMITED, soft, sysctl_number(_KERNEL_LIMIT))


def file_limit(wanted: int, allowed: int, kernel: int | None) -> int:
    """Return the least of what is wanted, what the process's limit allows, and what the kernel
    holds to (None: it has no limit of its own). Pure."""
    limits = [wanted, *([] if allowed == resource.RLIM_INFINITY else [allowed])]
    return min([*limits, *([] if not kernel else [kernel])])


def report_shortage_rarely(loop: asyncio.AbstractEventLoop) -> None:
    """Log once a minute, and not thousands of times a second, that a loop can accept no connection
    because the machine gives it no descriptor. Other errors of the loop are logged as ever."""
    failed, reported_s = 0, float("-inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal failed, reported_s
        error = context.get("exception")
        accepting = "accept" in context["message"]
        if not (accepting and isinstance(error, OSError) and error.errno in _SHORT):
            loop.default_exception_handler(context)
            return
        failed += 1
        now_s = time.monotonic()
        if now_s - reported_s >= _REPORT_EVERY_S:
            log.warning("connections wait, %d times until now: %s", failed, error)
            failed, reported_s = 0, now_s

    loop.set_exception_handler(handle)
