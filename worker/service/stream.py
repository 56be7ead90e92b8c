"""One stream's credit and waiting text, and what routers get. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lmx.protocol.messages.data import (
    ChoiceEnded,
    Delta,
    Failed,
    Finished,
    Outputs,
    TokenLogprob,
    ToolCallPart,
)
from lmx.protocol.states import DeltaKind

# With twenty alternatives each, four megabytes: well within one message.
_MAX_LOGPROBS: Final = 4096


@dataclass(slots=True)
class _Waiting:
    """Text of one answer and one kind that will go in one delta."""

    index: int
    kind: DeltaKind
    call: ToolCallPart | None
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def accepts(self, piece: Delta) -> bool:
        """Return whether a piece of the same answer can be joined to it."""
        if piece.kind is not self.kind or len(self.logprobs) >= _MAX_LOGPROBS:
            return False
        if self.call is None or piece.call is None:
            return True
        return piece.call.index == self.call.index and piece.call.name is None

    def add(self, piece: Delta) -> None:
        self.texts.append(piece.text)
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.token_ids += piece.token_ids


class Stream:
    """Turns text into deltas while there is credit, and joins it otherwise.

    For each answer and kind, the joined texts of all deltas are the joined texts that were added,
    in their order. There are never more deltas than credit, except those that go with an answer's
    end. A stream knows no socket and no engine.
    """

    def __init__(self, stream_id: int, credit_deltas: int) -> None:
        self._stream_id = stream_id
        self._credit_deltas = credit_deltas
        self._waiting: list[_Waiting] = []

    def add(self, piece: Delta) -> Delta | None:
        """Add a piece; return what may be sent now."""
        if self._credit_deltas > 0 and not self._waiting:
            self._credit_deltas -= 1
            piece.stream_id = self._stream_id
            return piece
        last = next((part for part in reversed(self._waiting) if part.index == piece.index), None)
        if last is None or not last.accepts(piece):
            last = _Waiting(piece.index, piece.kind, piece.call)
            self._waiting.append(last)
        last.add(piece)
        return None

    def grant(self, deltas: int) -> list[Delta]:
        """Add credit for ``deltas`` more; return what may be sent now. Ignores numbers below 1."""
        self._credit_deltas += max(0, deltas)
        ready = max(0, min(self._credit_deltas, len(self._waiting)))
        self._credit_deltas -= ready
        going, self._waiting = self._waiting[:ready], self._waiting[ready:]
        return [self._join(part) for part in going]

    def end(self, index: int) -> list[Delta]:
        """Return the waiting text of an answer, which goes with its end, whatever the credit."""
        going = [part for part in self._waiting if part.index == index]
        self._waiting = [part for part in self._waiting if part.index != index]
        return [self._join(part) for part in going]

    def _join(self, part: _Waiting) -> Delta:
        return Delta(
            self._stream_id,
            "".join(part.texts),
            part.tokens,
            part.index,
            part.kind,
            part.call,
            tuple(part.logprobs),
            tuple(part.token_ids),
        )


_MESSAGE_BYTES: Final = 256 * 1024
"""A larger message holds up the router's event loop while it is read: this much takes 10 ms. What
one step makes is smaller, but answers of which only the best are returned come all at once, and a
prompt's logprobs do."""

_DELTA_BYTES: Final = 64
"""The size of a delta without its text, of a token's logprob, and of an alternative."""


@dataclass(slots=True)
class RouterOutputs:
    """One router's part, while it is being collected."""

    deltas: list[Delta] = field(default_factory=list)
    ended: list[ChoiceEnded] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


class Outgoing:
    """The parts by router. Each router with a part gets one message, however many rows there are,
    unless it would be too large."""

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
