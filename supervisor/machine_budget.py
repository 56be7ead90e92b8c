"""The bytes of a machine that models may have. Pure."""

from __future__ import annotations

from lmx.supervisor.config import MemoryConfig


def budget_bytes(memory: MemoryConfig, total_bytes: int) -> int:
    """Return the budget of a machine with ``total_bytes``: what is configured, else the
    configured fraction, and in any case without the system's reserve. Never negative."""
    if memory.budget_bytes is not None:
        wished_bytes = int(memory.budget_bytes)
    else:
        wished_bytes = int(total_bytes * memory.budget_fraction)
    return max(0, min(wished_bytes, total_bytes - int(memory.os_reserve_bytes)))
