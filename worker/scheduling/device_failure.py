"""Decides whether an exception means that the GPU failed in what it computed for all. Pure."""

from __future__ import annotations

from typing import Final

from lmx.worker.scheduling.out_of_memory import causes

_PHRASES: Final = ("[METAL]", "kIOGPU")
"""What mlx writes when Metal reports a failed command buffer. The words of mlx's own allocator
begin with ``[metal::malloc]``, and concern one allocation."""


def is_device_failure(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that a command buffer failed.

    Such a buffer may hold the work of any row: mlx 0.32 raises its error at the next operation on
    the same stream, once, and the arrays that the buffer should have written stay as they were. So
    whatever raises it, no row's results can be trusted any more.
    """
    return any(phrase in str(one) for one in causes(error) for phrase in _PHRASES)
