"""OpenAI's completions, for chats and for texts, whole and as a stream of SSE events. Pure: no
clock, no socket."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import orjson

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob, Usage
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.api_family import OPENAI
from lmx.router.rendering.accumulator import AccumulatedChoice, LogprobsForm
from lmx.router.rendering.answer_format import Beginning, Ending, Generated, warnings_object
from lmx.router.rendering.envelope import Form, Identity, head_object, timings_object, usage_object

_CONTENT = DeltaKind.CONTENT
_NO_USAGE = b',"usage":null'
_CHUNK_END = b"}\n\n"
_DONE: Final = b"data: [DONE]\n\n"

PROMPT_IDS: Final = "prompt_token_ids"
"""The field with the tokens of a prompt."""


class ChoiceShape(Protocol):
    """The form of a choice in one kind of completion. One object serves one answer."""

    @property
    def chunk_object(self) -> str:
        """The ``object`` of a chunk."""

    @property
    def complete_object(self) -> str:
        """The ``object`` of a whole answer."""

    @property
    def text_key(self) -> str:
        """The field that holds the empty text of :meth:`plain`."""

    @property
    def prompts_in_choices(self) -> bool:
        """Whether the choices show what is known of their prompt."""

    def first(self, index: int) -> Mapping[str, Any] | None:
        """Return the beginning of a choice; None if it has none."""

    def plain(self, index: int) -> Mapping[str, Any]:
        """Return a choice with an empty text."""

    def entries(self, index: int, tokens: Sequence[TokenLogprob]) -> Sequence[Any]:
        """Return the logprobs of a choice's next tokens, an entry for each, as
        :meth:`complete_choice` gets them."""

    def rich(self, delta: Delta) -> Mapping[str, Any]:
        """Return the choice for a delta that is more than text."""

    def end(self, fact: ChoiceEnded) -> Mapping[str, Any]:
        """Return the choice with the reason of its end."""

    def complete_choice(self, fact: ChoiceEnded, gathered: AccumulatedChoice) -> Mapping[str, Any]:
        """Return a choice that does not stream."""


def with_prompts(
    answer: dict[str, Any], key: str, prompts: Sequence[Any], shape: ChoiceShape, form: Form
) -> dict[str, Any]:
    """Return an answer, or a chunk, with a field that has something of each of its prompts, in
    vLLM's places: at the top of a chat completion, and in the choices of a text completion, which
    may have several prompts."""
    if not shape.prompts_in_choices:
        return {**answer, key: prompts[0]}
    answers_each = form.choices // len(prompts)
    choices = [
        {**choice, key: prompts[choice["index"] // answers_each]} for choice in answer["choices"]
    ]
    return {**answer, "choices": choices}


_UNKNOWN: Final = Beginning()


class ChunkWriter:
    """Writes the chunks of one stream. See :class:`lmx.router.rendering.answer_format.EventWriter`.

    The part that is the same in every chunk is encoded once; a delta of plain text costs one
    ``orjson.dumps`` of its text. With ``include_usage`` every chunk but the last carries ``"usage":
    null``. The end of the last choice is held back until the end of the stream, because it carries
    the timings if no usage chunk follows.
    """

    def __init__(
        self, identity: Identity, form: Form, shape: ChoiceShape, beginning: Beginning = _UNKNOWN
    ) -> None:
        self._form = form
        self._shape = shape
        self._beginning = beginning
        self._head = b"data: " + orjson.dumps(head_object(identity, shape.chunk_object, form))[:-1]
        self._usage = _NO_USAGE if form.include_usage else b""
        self._tokens = 0
        self._open = form.choices
        self._last_end = b""
        # In JSON a quote within a string is escaped, so this text occurs in one place only.
        key = b'"' + shape.text_key.encode() + b'":'
        plain = [
            self._event(shape.plain(index)).split(key + b'""', 1) for index in range(form.choices)
        ]
        self._before = [before + key for before, _ in plain]
        self._after = plain[0][1]
        if form.continuous_usage:
            self._count(0)

    def first(self) -> bytes:
        """Return the chunks that choices begin with; none if this kind of choice has none."""
        prompt_ids = self._beginning.prompt_ids
        chunks = []
        for index in range(self._form.choices):
            choice = self._shape.first(index)
            if self._form.token_ids:
                chunk = {"choices": [choice or self._shape.plain(index)]}
                fields = orjson.dumps(
                    with_prompts(chunk, PROMPT_IDS, prompt_ids, self._shape, self._form)
                )
                chunks.append(self._head + b"," + fields[1:-1] + self._usage + _CHUNK_END)
            elif choice is not None:
                chunks.append(self._event(choice))
        return b"".join(chunks)

    def deltas(self, deltas: Iterable[Delta]) -> bytes:
        """Return one chunk for each delta that is not empty, joined."""
        # This is the hot path. One join of all parts was the fastest of four ways.
        before, after, dumps = self._before, self._after, orjson.dumps
        if self._form.continuous_usage:
            return b"".join(map(self._counted, deltas))
        pieces: list[bytes] = []
        for delta in deltas:
            if delta.kind is _CONTENT and not delta.logprobs and not delta.token_ids:
                if delta.text:
                    pieces += (before[delta.index], dumps(delta.text), after)
            elif delta.text or delta.call or delta.logprobs or delta.token_ids:
                pieces.append(self._event(self._shape.rich(delta)))
        return b"".join(pieces)

    def ends(self, ended: Iterable[ChoiceEnded]) -> Iterator[bytes]:
        """Yield the chunks with the finish reasons of choices, except that of the last choice."""
        for fact in ended:
            self._open -= 1
            chunk = self._chunk(self._shape.end(fact))
            if self._open:
                yield chunk + _CHUNK_END
            else:
                self._last_end = chunk

    def last(self, ending: Ending) -> bytes:
        """Return the last choice's finish reason, the usage chunk if one was requested, and
        the mark of the end.

        The timings, and the warnings, are in the last chunk.
        """
        shown = timings_object(ending.finished, ending.clocked)
        warnings = warnings_object(self._beginning, ending)
        timings = b"," + orjson.dumps({"timings": shown, **warnings})[1:-1]
        if not self._form.include_usage:
            return self._last_end + timings + _CHUNK_END + _DONE
        usage = orjson.dumps(usage_object(ending.finished.usage))
        tail = b',"choices":[],"usage":' + usage + timings
        return self._last_end + _CHUNK_END + self._head + tail + _CHUNK_END + _DONE

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        return OPENAI.error_event(error, request_id)

    def _counted(self, delta: Delta) -> bytes:
        """Return the chunk of a delta with the usage until now."""
        self._count(delta.tokens)
        if delta.kind is _CONTENT and not delta.logprobs and not delta.token_ids:
            if not delta.text:
                return b""
            rest = self._after.removesuffix(_NO_USAGE + _CHUNK_END)
            text = orjson.dumps(delta.text)
            return self._before[delta.index] + text + rest + self._usage + _CHUNK_END
        has_content = delta.text or delta.call or delta.logprobs or delta.token_ids
        return self._event(self._shape.rich(delta)) if has_content else b""

    def _count(self, tokens: int) -> None:
        self._tokens += tokens
        usage = usage_object(Usage(self._beginning.prompt_tokens, self._tokens))
        self._usage = b',"usage":' + orjson.dumps(usage)

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return self._chunk(choice) + _CHUNK_END

    def _chunk(self, choice: Mapping[str, Any]) -> bytes:
        # The closing brace is left out because timings may follow.
        return self._head + b',"choices":[' + orjson.dumps(choice) + b"]" + self._usage


class OpenAiAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    The whole answer of a stream has no logprobs, because the client has got them already: writing
    out those of a long answer takes most of a second.
    """

    def __init__(
        self, form: Form, shape: Callable[[Form], ChoiceShape], *, stream: bool, prompts: int = 1
    ) -> None:
        self._form = form
        self._answers_each = form.choices // prompts
        self._kept = replace(form, logprobs=False) if form.logprobs and stream else form
        self._shape = shape
        self._complete = shape(self._kept)

    @property
    def choices(self) -> int:
        return self._form.choices

    @property
    def retained_logprobs(self) -> LogprobsForm | None:
        return self._complete.entries if self._kept.logprobs else None

    def writer(self, identity: Identity, beginning: Beginning) -> ChunkWriter:
        return ChunkWriter(identity, self._form, self._shape(self._form), beginning)

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        """Return the whole answer, or the part that exists until now. In the latter a choice that
        has not ended has no finish reason, and the answer has neither usage nor timings."""
        shape, beginning, ending = self._complete, made.beginning, made.ending
        answer = {
            **head_object(made.identity, shape.complete_object, self._form),
            "choices": [
                shape.complete_choice(made.ends[index], choice)
                if index in made.ends
                else {
                    **shape.complete_choice(ChoiceEnded(0, index, FinishReason.STOP), choice),
                    "finish_reason": None,
                }
                for index, choice in enumerate(made.choices)
            ],
            "usage": None if ending is None else usage_object(ending.finished.usage),
            "timings": None if ending is None else timings_object(ending.finished, ending.clocked),
            **warnings_object(beginning, ending),
        }
        if self._form.token_ids and beginning.prompt_ids:
            answer = with_prompts(answer, PROMPT_IDS, beginning.prompt_ids, shape, self._form)
        if self._form.prompt_logprobs:
            scored = [choice.prompt_logprobs for choice in made.choices[:: self._answers_each]]
            answer = with_prompts(answer, "prompt_logprobs", scored, shape, self._form)
        return answer
