"""A response for which a prompt is read, and nothing written. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lmx.protocol.messages.data import ChoiceEnded, Delta
from lmx.protocol.states import FinishReason
from lmx.router.rendering.answer_format import Beginning, Generated
from lmx.router.rendering.envelope import Identity
from lmx.router.rendering.responses.events import ResponseAnswer, ResponseWriter


class PreparedAnswer(ResponseAnswer):
    """A response without output, which is complete."""

    def writer(self, identity: Identity, beginning: Beginning) -> "PreparedWriter":
        return PreparedWriter(identity, self._head(identity), beginning, self._items)

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        """Return the whole response."""
        ends = {index: _complete(end) for index, end in made.ends.items()}
        return super().complete_answer(replace(made, ends=ends))


class PreparedWriter(ResponseWriter):
    """Writes its events: when it began, and when it was complete."""

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Return nothing: a choice that ends at once has no text."""
        return b""

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield nothing, and note the end."""
        return super().ends([_complete(one) for one in ended])


def _complete(end: ChoiceEnded) -> ChoiceEnded:
    return replace(end, reason=FinishReason.STOP)
