"""Whether the router process that runs a job is alive, and what its record says when it is not."""

from __future__ import annotations

from typing import Final

import orjson
import psutil

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router.errors import error_body
from lmx.router.job_records import Router

_SAME_PROCESS_S: Final = 2.0
"""A process's time of creation may be told differently as the clock is set; no pid comes again
as soon as this."""


def own_process() -> Router:
    """Return what tells this process from all others."""
    own = psutil.Process()
    return own.pid, own.create_time()


def is_alive(router: Router) -> bool:
    """Return whether a router process is there and has not ended. Asks the system."""
    pid, created_s = router
    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - created_s) < _SAME_PROCESS_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # One of another user is not the process that wrote the file, which is its owner's alone.
        return False


def _interruption(message: str) -> bytes:
    return orjson.dumps(error_body(LmxError(ErrorCode.JOB_INTERRUPTED, message))["error"])


ROUTER_ENDED: Final = _interruption(
    "The router that ran this job ended before the job did. Send the request again."
)
END_LOST: Final = _interruption(
    "How this job ended could not be written to the job records; the router's log says why."
)
