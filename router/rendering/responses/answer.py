"""OpenAI's responses, whole. Pure.

Source: the documentation of OpenAI's Responses API, and the types of its Python library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from lmx.protocol.messages.data import ChoiceEnded, TokenLogprob
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.rendering.accumulator import AccumulatedChoice
from lmx.router.rendering.answer_format import Beginning, Ending
from lmx.router.rendering.envelope import Identity
from lmx.router.rendering.logprobs import chat_entries
from lmx.router.rendering.responses.events import ResponseWriter
from lmx.router.rendering.responses.items import (
    COMPLETED,
    INCOMPLETE,
    ItemForm,
    ItemStatus,
    OutputItem,
)
from lmx.router.rendering.responses.state import ended, under_way


def _entries(_: int, tokens: Sequence[TokenLogprob]) -> list[Any]:
    return chat_entries(tokens)


class ResponseAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    ``asked`` are the fields of the request that a response repeats.
    """

    choices: Final = 1

    def __init__(self, asked: Mapping[str, Any], items: ItemForm, *, logprobs: bool) -> None:
        self._asked = asked
        self._items = items
        self.retained_logprobs: Final = _entries if logprobs else None

    def writer(self, identity: Identity, beginning: Beginning) -> ResponseWriter:
        """Return the writer of the answer's stream."""
        return ResponseWriter(identity, self._head(identity), beginning, self._items)

    def complete_answer(
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

    def stored_output(
        self, response_id: str, made: AccumulatedChoice, end: ChoiceEnded | None
    ) -> bytes:
        """Return the items as JSON, without logprobs: what continues the response does not read
        them, and they may be a hundred times the text."""
        return orjson.dumps(list(self._output(response_id, made, end, logprobs=False)))

    def _head(self, identity: Identity) -> dict[str, Any]:
        return {
            "id": identity.completion_id,
            "object": "response",
            "created_at": identity.created_s,
            "model": identity.model_id,
            **self._asked,
        }

    def _output(
        self,
        response_id: str,
        made: AccumulatedChoice,
        end: ChoiceEnded | None,
        *,
        logprobs: bool = True,
    ) -> Iterator[OutputItem]:
        is_cut = end is None or end.reason is FinishReason.LENGTH
        parts = list(made.parts())
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            status: ItemStatus = INCOMPLETE if is_cut and is_last else COMPLETED
            if part.call is not None:
                call = part.call
                given = self._items.given(call.name, part.text)
                yield self._items.call(response_id, index, call.call_id, call.name, given, status)
            elif part.kind is DeltaKind.REASONING:
                yield self._items.reasoning(response_id, index, part.text, status)
            else:
                shown = part.logprobs if logprobs else ()
                yield self._items.message(response_id, index, part.text, shown, status)
