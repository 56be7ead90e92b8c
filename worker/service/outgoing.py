"""Collects what one delivery of the engine thread has for each router.

Each router gets one message, however many rows there are, unless it would be too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lmx.protocol.messages.data import ChoiceEnded, Delta, Failed, Finished, Outputs

_MESSAGE_BYTES: Final = 256 * 1024
"""A larger message holds up the router's event loop while it is read: this much takes 10 ms. What
one step makes is smaller, but answers of which only the best are returned come all at once, and a
prompt's logprobs do."""

_DELTA_BYTES: Final = 64
"""The size of a delta without its text, and of one token with its logprob or one alternative to
it."""


@dataclass(slots=True)
class RouterOutputs:
    """One router's part, while it is being collected."""

    deltas: list[Delta] = field(default_factory=list)
    ended: list[ChoiceEnded] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


class Outgoing:
    """The parts by router. A router without a part gets no message."""

    def __init__(self) -> None:
        self._by_router: dict[bytes, RouterOutputs] = {}

    def to(self, router: bytes) -> RouterOutputs:
        """Return a router's part, so that output can be added to it."""
        found = self._by_router.get(router)
        if found is None:
            found = self._by_router[router] = RouterOutputs()
        return found

    def send(self, send: Callable[[bytes, Any], None]) -> None:
        """Send each router its message. If it takes several, the last one has the ends."""
        for router, part in self._by_router.items():
            *before, deltas = _cut(part.deltas)
            for some in before:
                send(router, Outputs(some))
            send(
                router, Outputs(deltas, tuple(part.ended), tuple(part.finished), tuple(part.failed))
            )


def _cut(deltas: Iterable[Delta]) -> Iterator[tuple[Delta, ...]]:
    going: list[Delta] = []
    size_bytes = 0
    for delta in deltas:
        delta_bytes = len(delta.text) + _DELTA_BYTES
        if delta.logprobs:
            delta_bytes += _DELTA_BYTES * sum(1 + len(token.top) for token in delta.logprobs)
        if going and size_bytes + delta_bytes > _MESSAGE_BYTES:
            yield tuple(going)
            going, size_bytes = [], 0
        going.append(delta)
        size_bytes += delta_bytes
    yield tuple(going)
