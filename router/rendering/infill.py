"""The answers of llama.cpp's /infill, whole and as server-sent events. Pure.

Source: llama.cpp's documentation of its server ("POST /completion", "POST /infill").
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NotRequired

import orjson

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta
from lmx.protocol.states import FinishReason
from lmx.router.http.api_family import OPENAI
from lmx.router.http.responses import Answer
from lmx.router.rendering.answer_format import Beginning, Ending, Generated
from lmx.router.rendering.envelope import Identity


class InfillSettings(Answer):
    """What the answer was made with."""

    n_ctx: int | None
    """The tokens that the model's context may have. Null until it is known."""


class InfillTimings(Answer):
    """How long it took, by llama.cpp's names."""

    prompt_n: int
    """Tokens of the prompt that were computed."""
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    """Tokens of the answer."""
    predicted_ms: float
    predicted_per_second: float


class InfillAnswer(Answer):
    """The answer of POST /infill, and an event of its stream. Only the last event has `stop`, and
    what comes after it here."""

    index: Literal[0]
    content: str
    """What belongs in the gap; of an event, what is new of it. In the last event it is empty."""
    stop: bool
    """Whether the answer has ended."""
    model: NotRequired[str]
    stop_type: NotRequired[Literal["eos", "word", "limit"]]
    """Why it ended: by a token of the model, by a text or token of the request, or by its limit."""
    stopping_word: NotRequired[str]
    """The text of `stop` that ended it; else empty."""
    tokens_predicted: NotRequired[int]
    """Tokens of the answer."""
    tokens_evaluated: NotRequired[int]
    """Tokens of the prompt."""
    tokens_cached: NotRequired[int]
    """Tokens of the prompt that were in the prefix cache."""
    truncated: NotRequired[Literal[False]]
    """Always the same: a prompt that does not fit into the context is a 400."""
    generation_settings: NotRequired[InfillSettings]
    timings: NotRequired[InfillTimings]


class InfillForm:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`. ``contexts`` has the length of
    each model's context, by the model's id."""

    choices: Final = 1
    retained_logprobs: Final = None

    def __init__(self, contexts: Mapping[str, int | None]) -> None:
        self._contexts = contexts

    def writer(self, identity: Identity, beginning: Beginning) -> "InfillWriter":
        return InfillWriter(self, identity)

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        """Return the whole answer, or the part that exists until now, which has not stopped."""
        text = "".join(made.choices[0].content)
        if made.ending is None or 0 not in made.ends:
            return {"index": 0, "content": text, "stop": False}
        return self.ended(made.identity, text, made.ends[0], made.ending)

    def ended(
        self, identity: Identity, text: str, ended: ChoiceEnded, ending: Ending
    ) -> dict[str, Any]:
        """Return an answer that has ended, with its figures."""
        usage, timings = ending.finished.usage, ending.finished.timings
        computed = usage.prompt_tokens - usage.cached_tokens
        kind = "limit" if ended.reason is FinishReason.LENGTH else "word" if ended.stop else "eos"
        return {
            "index": 0,
            "content": text,
            "stop": True,
            "model": identity.model_id,
            "stop_type": kind,
            "stopping_word": ended.stop or "",
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "truncated": False,
            "generation_settings": {"n_ctx": self._contexts.get(identity.model_id)},
            "timings": {
                **_pace("prompt", computed, timings.prefill_s),
                **_pace("predicted", usage.completion_tokens, timings.decode_s),
            },
        }


class InfillWriter:
    """Writes the events of one answer, as an
    :class:`lmx.router.rendering.answer_format.EventWriter` does."""

    def __init__(self, form: InfillForm, identity: Identity) -> None:
        self._form = form
        self._identity = identity
        self._end: ChoiceEnded | None = None

    def first(self) -> bytes:
        """Return nothing: an answer begins with its first text."""
        return b""

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        return b"".join(
            _event({"index": 0, "content": delta.text, "stop": False})
            for delta in deltas
            if delta.text
        )

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield nothing: the last event has the end."""
        self._end = ended[0]
        return iter(())

    def last(self, ending: Ending) -> bytes:
        assert self._end is not None
        return _event(self._form.ended(self._identity, "", self._end, ending))

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        return OPENAI.error_event(error, request_id)


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _pace(name: str, tokens: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_second": tokens / seconds if seconds > 0 else 0.0,
    }
