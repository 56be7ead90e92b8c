"""Whether an exception means that memory ran out. Pure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from lmx.protocol.errors import ErrorCode, LmxError

_SAYINGS: Final = (
    "std::bad_alloc",
    # mlx's own, and numpy's, of a malloc that gave nothing.
    "unable to allocate",
    "cannot allocate memory",
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    # Metal's, of a command buffer that could not be run.
    "insufficient memory",
    "kiogpucommandbuffercallbackerroroutofmemory",
)
"""What libraries write, in lower case, into exceptions of no telling type."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that it came of, says that there was no memory left.

    A single buffer that is larger than a device takes at all ("greater than the maximum
    allowed buffer size") is none of those: there may be memory in plenty.
    """
    return any(_says_so(one) for one in _chain(error))


def _says_so(error: BaseException) -> bool:
    match error:
        case MemoryError():
            return True
        case LmxError():
            return error.code is ErrorCode.INSUFFICIENT_MEMORY
        case OSError():
            return error.errno == errno.ENOMEM
        case _:
            text = str(error).lower()
            return any(saying in text for saying in _SAYINGS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
