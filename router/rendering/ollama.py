"""The answers of Ollama's API, whole and as lines of JSON. Pure.

Source: Ollama's documentation of its API ("Generate a chat message", "Generate a response").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NotRequired

import orjson

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.api_family import OLLAMA
from lmx.router.http.responses import Answer
from lmx.router.rendering.accumulator import GatheredCall, arguments_object
from lmx.router.rendering.answer_format import Beginning, Ending, Generated
from lmx.router.rendering.envelope import Identity, utc_text
from lmx.router.rendering.logprobs import ollama_logprobs
from lmx.router.rendering.ollama_context import Turn, context_of

_DONE_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "stop",
}

_NANOSECONDS: Final = 1e9


class OllamaFunction(Answer):
    """The function of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Answer):
    """A call that the model makes."""

    id: str
    function: OllamaFunction


class OllamaReply(Answer):
    """A message of the model."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str | None]
    """What the model thought before it answered."""
    tool_calls: NotRequired[list[OllamaCall] | None]


class OllamaToken(Answer):
    """A token."""

    token: str
    """The token's text."""
    logprob: float
    """The natural logarithm of its probability; -9999 for impossible."""
    bytes: list[int]
    """Its bytes in UTF-8; a token may be a part of a character."""


class OllamaLogprob(OllamaToken):
    """A token of the answer."""

    top_logprobs: NotRequired[list[OllamaToken] | None]
    """The likeliest tokens in its place, where they were requested."""


class OllamaProgress(Answer):
    """What both kinds of answer have. In a stream only the last line is done, and has figures."""

    model: str
    """The name that the request gave."""
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load", "unload"] | None]
    """Why the answer ended. `load` and `unload`: there was nothing to answer."""
    prompt_eval_count: NotRequired[int | None]
    """Tokens of the prompt."""
    eval_count: NotRequired[int | None]
    """Tokens of the answer, thinking included."""
    total_duration: NotRequired[int | None]
    load_duration: NotRequired[int | None]
    """How long the model was waited for."""
    prompt_eval_duration: NotRequired[int | None]
    eval_duration: NotRequired[int | None]
    logprobs: NotRequired[list[OllamaLogprob] | None]
    """The tokens of the text, where they were requested. In a stream each line has its own."""


class OllamaChatAnswer(OllamaProgress):
    """The answer of POST /api/chat, and a line of its stream."""

    message: OllamaReply


class OllamaGenerateAnswer(OllamaProgress):
    """The answer of POST /api/generate, and a line of its stream."""

    response: str
    thinking: NotRequired[str | None]
    """What the model thought before it answered."""
    context: NotRequired[list[int] | None]
    """The conversation, for the `context` of the next request. With `raw` there is none."""


def time_text(at_s: int) -> str:
    """Return a Unix time as Ollama writes it: with a fraction of the second, without which some
    clients (OllamaKit) can't read it."""
    return utc_text(at_s).replace("Z", ".000000Z")


def nanoseconds(seconds: float) -> int:
    """Return a time in the unit of Ollama's durations."""
    return int(seconds * _NANOSECONDS)


class OllamaAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    ``name`` is the model's as the client gave it, since clients compare it. ``chat`` is whether
    the answer is a message, or the response to a prompt. ``loaded`` is the reason of an answer to a
    request that has nothing to answer: ``load`` or ``unload``. ``turns`` is the conversation of
    which the answer returns the ``context``; None: it returns none.
    """

    choices: Final = 1

    def __init__(
        self,
        name: str,
        *,
        chat: bool,
        loaded: str | None = None,
        logprobs: bool = False,
        stream: bool = False,
        turns: Sequence[Turn] | None = None,
    ) -> None:
        self._name = name
        self._chat = chat
        self._loaded = loaded
        self._turns = turns
        # The client of a stream has got them already.
        self.retained_logprobs: Final = _retained_logprobs if logprobs and not stream else None

    def writer(self, identity: Identity, beginning: Beginning) -> OllamaWriter:
        head = self._head(identity.created_s)
        end = {**head, **self._text_fields("")}
        return OllamaWriter(head, end, chat=self._chat, loaded=self._loaded, turns=self._turns)

    def unloaded(self, created_s: int) -> dict[str, Any]:
        """Return the answer to the wish to unload a model that is not loaded."""
        end = {"done": True, "done_reason": "unload"}
        return {**self._head(created_s), **self._text_fields(""), **end}

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        """Return the whole answer, or the part that exists until now, which is not done."""
        choice, ending = made.choices[0], made.ending
        text = "".join(choice.content)
        shown_text = self._text_fields(text)
        shown = shown_text["message"] if self._chat else shown_text
        if thinking := "".join(choice.reasoning):
            shown["thinking"] = thinking
        if choice.calls:
            shown["tool_calls"] = [_call(index, one) for index, one in choice.calls.items()]
        answer = {**self._head(made.identity.created_s), **shown_text}
        if self.retained_logprobs is not None:
            answer["logprobs"] = choice.logprobs
        if ending is None or 0 not in made.ends:
            return {**answer, "done": False}
        end = _end_object(made.ends[0], ending, self._loaded)
        return {**answer, **end, **_context(self._turns, text)}

    def _head(self, created_s: int) -> dict[str, Any]:
        return {"model": self._name, "created_at": time_text(created_s)}

    def _text_fields(self, text: str) -> dict[str, Any]:
        if self._chat:
            return {"message": {"role": "assistant", "content": text}}
        return {"response": text}


class OllamaWriter:
    """Writes the lines of one answer. See :class:`lmx.router.rendering.answer_format.EventWriter`.

    What is the same in all lines of a kind is encoded once. A call is one line, written when it is
    whole.
    """

    def __init__(
        self,
        head: dict[str, Any],
        end: dict[str, Any],
        *,
        chat: bool,
        loaded: str | None,
        turns: Sequence[Turn] | None = None,
    ) -> None:
        self._turns = turns
        self._texts: list[str] = []
        """The text until now, if the answer returns the conversation."""
        self._head = orjson.dumps(head)[:-1]
        self._last_line = end
        self._loaded = loaded
        open_, self._close = (b',"message":{"role":"assistant",', b"}") if chat else (b",", b"")
        self._after = self._close + b',"done":false}\n'
        text = b'"content":' if chat else b'"response":'
        self._text = self._head + open_ + text
        self._thinking = self._text + b'"","thinking":'
        self._calls = self._text + b'"","tool_calls":'
        self._call: GatheredCall | None = None
        self._index = 0
        self._end: ChoiceEnded | None = None

    def first(self) -> bytes:
        """Return nothing: an answer begins with its first text."""
        return b""

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        pieces: list[bytes] = []
        for delta in deltas:
            if delta.call is not None:
                if delta.call.call_id is not None:
                    pieces.append(self._complete_call())
                    self._index = delta.call.index
                    self._call = GatheredCall(delta.call.call_id, delta.call.name)
                assert self._call is not None
                self._call.arguments.append(delta.text)
            elif delta.kind is DeltaKind.REASONING:
                if delta.text:
                    pieces += (self._thinking, orjson.dumps(delta.text), self._after)
            elif delta.logprobs:
                pieces += (self._text, orjson.dumps(delta.text), self._close, b',"logprobs":')
                pieces += (orjson.dumps(ollama_logprobs(delta.logprobs)), b',"done":false}\n')
            elif delta.text:
                pieces += (self._text, orjson.dumps(delta.text), self._after)
            if self._turns is not None and delta.kind is DeltaKind.CONTENT and delta.call is None:
                self._texts.append(delta.text)
        return b"".join(pieces)

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield the last call."""
        self._end = ended[0]
        yield self._complete_call()

    def last(self, ending: Ending) -> bytes:
        """Return the line with the reason of the answer's end and its durations."""
        assert self._end is not None
        end = _end_object(self._end, ending, self._loaded)
        context = _context(self._turns, "".join(self._texts))
        return orjson.dumps({**self._last_line, **end, **context}) + b"\n"

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        return OLLAMA.error_event(error, request_id)

    def _complete_call(self) -> bytes:
        call, self._call = self._call, None
        if call is None:
            return b""
        return self._calls + orjson.dumps([_call(self._index, call)]) + self._after


def _retained_logprobs(_: int, tokens: Sequence[TokenLogprob]) -> list[Any]:
    return ollama_logprobs(tokens)


def _call(index: int, call: GatheredCall) -> OllamaCall:
    arguments = arguments_object("".join(call.arguments))
    return {
        "id": call.call_id or "",
        "function": {"index": index, "name": call.name or "", "arguments": arguments},
    }


def _context(turns: Sequence[Turn] | None, shown_text: str) -> dict[str, Any]:
    return {} if turns is None else {"context": context_of([*turns, ("assistant", shown_text)])}


def _end_object(ended: ChoiceEnded, ending: Ending, loaded: str | None) -> dict[str, Any]:
    """Return why an answer ended, with its figures; times are nanoseconds."""
    if loaded is not None:
        return {"done": True, "done_reason": loaded}
    finished, clocked = ending.finished, ending.clocked
    times = {
        "total_duration": clocked.total_s,
        "load_duration": clocked.load_s,
        "prompt_eval_duration": finished.timings.prefill_s,
        "eval_duration": finished.timings.decode_s,
    }
    return {
        "done": True,
        "done_reason": _DONE_REASONS[ended.reason],
        "prompt_eval_count": finished.usage.prompt_tokens,
        "eval_count": finished.usage.completion_tokens,
        **{name: nanoseconds(seconds) for name, seconds in times.items()},
    }
