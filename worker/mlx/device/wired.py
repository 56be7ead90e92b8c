"""Decides how much of a worker's memory is wired on a Mac. Pure.

Memory that is not wired may be compressed or swapped by macOS when something else needs memory, and
a model that is larger than about half of what the GPU may have is then read back at every token: a
model of 102 GB made 0.7 tokens a second so, and 31 with its memory wired.

Only weights are wired. With a wired limit, mlx adds each new buffer that fits the limit to a
residency set, and takes each freed one out. On many Macs the kernel panicked within two minutes
(``IOGPUMemory.cpp``, "prepare count underflow") when caches of rows came and went that way, and
never when they did not. A limit of exactly the weights leaves no capacity for other buffers.
"""

from lmx.protocol.states import MemoryWiring

_LARGE_PART = 2
"""Weights above one part in this many of what the GPU may have are large."""


def wired_bytes(wiring: MemoryWiring, weights_bytes: int, working_set_bytes: int) -> int:
    """Return the limit of wired memory to set; 0: nothing is wired. ``working_set_bytes`` is what
    the GPU may have at all; mlx refuses a limit above it."""
    match wiring:
        case MemoryWiring.NEVER:
            return 0
        case MemoryWiring.AUTO if weights_bytes * _LARGE_PART <= working_set_bytes:
            return 0
        case _:
            return min(weights_bytes, working_set_bytes)
