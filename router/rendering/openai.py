"""OpenAI's completions, for chats and for texts, whole and as a stream. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmx.protocol.messages.data import ChoiceEnded
from lmx.protocol.states import FinishReason
from lmx.router.rendering.accumulator import AccumulatedChoice, LogprobsForm
from lmx.router.rendering.answer_format import Beginning, Ending, warnings_object
from lmx.router.rendering.chunks import PROMPT_IDS, ChoiceShape, ChunkWriter, with_prompts
from lmx.router.rendering.envelope import (
    Form,
    Identity,
    head_object,
    timings_object,
    usage_object,
)


class OpenAiAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    The whole answer of a stream has no logprobs, because the client has got them already: writing
    out those of a long answer takes most of a second.
    """

    def __init__(
        self,
        form: Form,
        shape: Callable[[Form], ChoiceShape],
        *,
        stream: bool,
        prompts: int = 1,
    ) -> None:
        self._form = form
        self._answers_each = form.choices // prompts
        self._kept = replace(form, logprobs=False) if form.logprobs and stream else form
        self._shape = shape
        self._complete = shape(self._kept)

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return self._form.choices

    @property
    def retained_logprobs(self) -> LogprobsForm | None:
        """How the whole answer shows logprobs; None if it shows none."""
        return self._complete.entries if self._kept.logprobs else None

    def writer(self, identity: Identity, beginning: Beginning) -> ChunkWriter:
        """Return the writer of the answer's stream."""
        return ChunkWriter(identity, self._form, self._shape(self._form), beginning)

    def complete_answer(
        self,
        identity: Identity,
        beginning: Beginning,
        choices: Sequence[AccumulatedChoice],
        ends: Mapping[int, ChoiceEnded],
        ending: Ending | None,
    ) -> dict[str, Any]:
        """Return the whole answer, or the part that exists until now. In the latter a choice that
        has not ended has no finish reason, and the answer has neither usage nor timings."""
        shape = self._complete
        answer = {
            **head_object(identity, shape.complete_object),
            "choices": [
                shape.complete_choice(ends[index], choice)
                if index in ends
                else {
                    **shape.complete_choice(ChoiceEnded(0, index, FinishReason.STOP), choice),
                    "finish_reason": None,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": None if ending is None else usage_object(ending.finished.usage),
            "timings": None if ending is None else timings_object(ending.finished, ending.clocked),
            **warnings_object(beginning, ending),
        }
        if self._form.token_ids and beginning.prompt_ids:
            answer = with_prompts(answer, PROMPT_IDS, beginning.prompt_ids, shape, self._form)
        if self._form.prompt_logprobs:
            scored = [choice.prompt_logprobs for choice in choices[:: self._answers_each]]
            answer = with_prompts(answer, "prompt_logprobs", scored, shape, self._form)
        return answer
