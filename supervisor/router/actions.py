"""The actions that the router's guard asks for: everything that touches the world outside it."""

from __future__ import annotations

import socket
from typing import Protocol

from lmx.supervisor.events import Events
from lmx.supervisor.state.process_records import RouterRecord


class RouterActions(Events, Protocol):
    """Processes, signals, files and the log. None of the methods may block."""

    def spawn_router(self, listener: socket.socket) -> RouterRecord:
        """Start a router on a listening socket. Raises ``OSError``."""

    def signal_router(self, pid: int, number: int) -> None:
        """Send a signal to a router. Does nothing if the router is gone."""

    def waited_s(self, pid: int, now_s: float) -> float:
        """Return how much of the time since the last call a router that is late waited for a
        processor."""

    def save_routers(self, records: list[RouterRecord]) -> None:
        """Record the routers that run, for the next supervisor."""
