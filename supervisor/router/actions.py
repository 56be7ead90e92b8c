"""What the router's guard has done for it: everything that touches the world."""

from __future__ import annotations

import socket
from typing import Protocol

from lmx.supervisor.events import Events
from lmx.supervisor.state.process_records import RouterRecord


class RouterActions(Events, Protocol):
    """Processes, signals, files, the log. None of these may block."""

    def spawn_router(self, listener: socket.socket) -> RouterRecord:
        """Start a router on a listening socket. Raises ``OSError``."""

    def signal_router(self, pid: int, number: int) -> None:
        """Signal a router; nothing if it is gone."""

    def save_routers(self, records: list[RouterRecord]) -> None:
        """Remember the routers that run, for the next supervisor."""
