"""OpenAI's responses, whole. Pure.

Source: the documentation of OpenAI's Responses API, and the types of its Python library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lmx.protocol.messages.data import ChoiceEnded
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.rendering.accumulator import AccumulatedChoice
from lmx.router.rendering.answer_format import Beginning, Ending
from lmx.router.rendering.envelope import Identity
from lmx.router.rendering.responses.events import ResponseWriter
from lmx.router.rendering.responses.items import COMPLETED, INCOMPLETE, ItemForm
from lmx.router.rendering.responses.state import ended, under_way


class ResponseAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    ``asked`` are the fields of the request that a response repeats.
    """

    choices: Final = 1

    def __init__(self, asked: Mapping[str, Any], items: ItemForm, *, logprobs: bool) -> None:
        self._asked = asked
        self._items = items
        self.keeps_logprobs: Final = logprobs

    def writer(self, identity: Identity, beginning: Beginning) -> ResponseWriter:
        """Return the writer of the answer's stream."""
        return ResponseWriter(identity, self._head(identity), beginning, self._items)

    def whole(
        self,
        identity: Identity,
        beginning: Beginning,
        choices: Sequence[AccumulatedChoice],
        ends: Mapping[int, ChoiceEnded],
        ending: Ending | None,
    ) -> dict[str, Any]:
        """Return the whole response, or the part that exists until now, which is in progress."""
        output = list(self._output(identity.completion_id, choices[0], ends.get(0)))
        state = under_way() if ending is None else ended(identity, beginning, ends[0], ending)
        return {**self._head(identity), "output": output, **state}

    def _head(self, identity: Identity) -> dict[str, Any]:
        return {
            "id": identity.completion_id,
            "object": "response",
            "created_at": identity.created_s,
            "model": identity.model_id,
            **self._asked,
        }

    def _output(
        self, response_id: str, made: AccumulatedChoice, end: ChoiceEnded | None
    ) -> Iterator[dict[str, Any]]:
        is_cut = end is None or end.reason is FinishReason.LENGTH
        for index, stretch in enumerate(made.stretches):
            later = made.stretches[index + 1 :]
            status = INCOMPLETE if is_cut and not later else COMPLETED
            if stretch.kind is DeltaKind.TOOL_CALL:
                call = made.calls[stretch.start]
                given = self._items.given(call.name, "".join(call.arguments))
                yield self._items.call(response_id, index, call.call_id, call.name, given, status)
                continue
            following = next((one for one in later if one.kind is stretch.kind), None)
            end_place = None if following is None else following.start
            if stretch.kind is DeltaKind.REASONING:
                thoughts = "".join(made.reasoning[stretch.start : end_place])
                yield self._items.reasoning(response_id, index, thoughts, status)
                continue
            logprobs_end = None if following is None else following.logprobs_start
            yield self._items.message(
                response_id,
                index,
                "".join(made.content[stretch.start : end_place]),
                made.logprobs[stretch.logprobs_start : logprobs_end],
                status,
            )
