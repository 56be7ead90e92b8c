"""What one delivery of the engine thread has for each router: one message, however many rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.data import ChoiceEnded, Delta, Failed, Finished, Outputs


@dataclass(slots=True)
class RouterOutputs:
    """One router's part, while it is being gathered."""

    deltas: list[Delta] = field(default_factory=list)
    ended: list[ChoiceEnded] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


class Outgoing:
    """Gathers by router. Routers for which nothing was asked get no message."""

    __slots__ = ("_by_router",)

    def __init__(self) -> None:
        self._by_router: dict[bytes, RouterOutputs] = {}

    def to(self, router: bytes) -> RouterOutputs:
        """Return a router's part, to add to."""
        found = self._by_router.get(router)
        if found is None:
            found = self._by_router[router] = RouterOutputs()
        return found

    def send(self, send: Callable[[bytes, Any], None]) -> None:
        """Send each router its message."""
        for router, part in self._by_router.items():
            send(
                router,
                Outputs(
                    tuple(part.deltas),
                    tuple(part.ended),
                    tuple(part.finished),
                    tuple(part.failed),
                ),
            )
