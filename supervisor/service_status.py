"""What ``lmx-supervisor status --json`` says of the supervisor itself. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmx.protocol.states import MemoryPressure
from lmx.supervisor.core import Core
from lmx.supervisor.memory_reading import MemoryReading
from lmx.supervisor.reachable import api_urls


def supervisor_status(core: Core) -> dict[str, Any]:
    """Return what the core knows: its state and the memory that models have."""
    ledger = core.ledger
    return {
        "state": "stopping" if core.stopping else "running",
        "epoch": core.epoch,
        "budget_bytes": ledger.budget_bytes,
        "reserved_bytes": ledger.reserved_bytes,
        "missing_bytes": ledger.missing_bytes,
        "memory_soft_line": core.config.memory.soft_line,
        "swaps_total": core.swaps_total,
        "soft_line": core.config.memory.soft_line,
        "hard_line": core.config.memory.hard_line,
    }


def memory_status(pressure: MemoryPressure, reading: MemoryReading) -> dict[str, Any]:
    """Return how the machine's memory is."""
    return {
        "memory_pressure": pressure.value,
        "machine_memory_bytes": reading.total_bytes,
        "machine_used_bytes": reading.used_bytes,
        "machine_available_bytes": reading.available_bytes,
    }


def with_urls(
    router: dict[str, Any], host: str, addresses: Callable[[], tuple[str, ...]]
) -> dict[str, Any]:
    """Return a router's status with where its API is: ``urls``, and as ``url`` the one to tell
    people. ``host`` is for while there is no router; ``addresses`` gives the machine's own."""
    host = router["host"] or host
    if not router["port"]:
        return {**router, "host": host}
    urls = api_urls(host, router["port"], addresses)
    return {**router, "host": host, "url": urls[0], "urls": list(urls)}
