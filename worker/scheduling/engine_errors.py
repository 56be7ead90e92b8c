"""Decides what an engine's exception means: memory ran out, or the device failed. Pure."""

import errno
from collections.abc import Iterator
from typing import Final

from lmx.protocol.errors import ErrorCode, LmxError

_OUT_OF_MEMORY: Final = (
    "std::bad_alloc",
    # The words of mlx and of numpy for a malloc that failed.
    "unable to allocate",
    "cannot allocate memory",
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    # Metal's words for a command buffer that could not be run.
    "insufficient memory",
    "kiogpucommandbuffercallbackerroroutofmemory",
    # macOS limits how many buffers of the GPU a process has (``iogpu.rsrc_limit``).
    "[metal::malloc] resource limit",
)
"""Phrases, in lower case, of libraries whose exceptions have no type of their own for this."""

_DEVICE_FAILURE: Final = ("[METAL]", "kIOGPU")
"""What mlx writes when Metal reports a failed command buffer. The words of mlx's own allocator
begin with ``[metal::malloc]``, and concern one allocation."""

UNFIT: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What the libraries raise in a trial of what a model can't do. A device that failed raises a
``RuntimeError`` too."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that no memory was left.

    A single buffer that is larger than the device accepts at all ("greater than the maximum allowed
    buffer size") does not count: there may be plenty of memory.
    """
    return any(_is_allocation_failure(one) for one in causes(error))


def _is_allocation_failure(error: BaseException) -> bool:
    match error:
        case MemoryError():
            return True
        case LmxError():
            return error.code is ErrorCode.INSUFFICIENT_MEMORY
        case OSError():
            return error.errno == errno.ENOMEM
        case _:
            text = str(error).lower()
            return any(phrase in text for phrase in _OUT_OF_MEMORY)


def is_device_failure(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that a command buffer failed.

    Such a buffer may hold the work of any row: mlx 0.32 raises its error at the next operation on
    the same stream, once, and the arrays that the buffer should have written stay as they were. So
    whatever raises it, no row's results can be trusted any more.
    """
    return any(phrase in str(one) for one in causes(error) for phrase in _DEVICE_FAILURE)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then what it was raised from or while handling, each once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
