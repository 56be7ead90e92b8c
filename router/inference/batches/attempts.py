"""What follows when a line could not be answered. Pure."""

from typing import Final

from lmx.protocol.errors import ErrorCode

PASSING: Final = frozenset(
    {
        ErrorCode.RATE_LIMIT_EXCEEDED,
        ErrorCode.QUEUE_FULL,
        ErrorCode.QUEUE_TIMEOUT,
        ErrorCode.MODEL_LOADING,
        ErrorCode.MODEL_UNLOADED,
        ErrorCode.MODEL_DRAINED,
        ErrorCode.MODEL_QUARANTINED,
        ErrorCode.MODEL_LOAD_FAILED,
        ErrorCode.DOWNLOAD_FAILED,
        ErrorCode.INSUFFICIENT_MEMORY,
        ErrorCode.INSUFFICIENT_DISK,
        ErrorCode.JOBS_UNAVAILABLE,
        ErrorCode.SUPERVISOR_UNAVAILABLE,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.ROUTER_HUNG,
        ErrorCode.WORKER_KILLED,
        ErrorCode.WORKER_LOST,
    }
)
"""Errors that are not the line's doing, and pass: with time, or when a person has done something.
The line is answered later, if its batch has not expired by then. A model that keeps failing to load
is quarantined."""

SUSPICIOUS: Final = frozenset(
    {
        ErrorCode.WORKER_CRASHED,
        ErrorCode.WORKER_HUNG,
        ErrorCode.WORKER_OUT_OF_MEMORY,
        ErrorCode.ENGINE_ERROR,
        # A file that it names may be damaged.
        ErrorCode.FILES_UNAVAILABLE,
    }
)
"""Errors that a line may have caused, or another one that ran with it. It is tried once more,
alone: what happens then is its own doing."""
