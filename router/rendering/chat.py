"""The form of a choice of a chat completion, in chunks and whole. Pure."""

from collections.abc import Sequence
from typing import Any, Final, Literal, NotRequired

from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob
from lmx.protocol.states import DeltaKind
from lmx.router.http.responses import Answer
from lmx.router.rendering.accumulator import AccumulatedChoice, GatheredCall
from lmx.router.rendering.envelope import (
    AnswerChoice,
    ChoiceEnd,
    Chunk,
    FinishWord,
    Form,
    WholeAnswer,
    end_object,
)
from lmx.router.rendering.logprobs import ChatLogprobs, PromptToken, chat_entries, chat_logprobs


class CalledFunction(Answer):
    """The function that is called."""

    name: str
    """Its name."""
    arguments: str
    """Its arguments, as JSON text."""


class CalledTool(Answer):
    """A call that the model makes."""

    id: str
    """The call's id, which its result names."""
    type: Literal["function"]
    function: CalledFunction
    """The function that is called."""


class AnswerMessage(Answer):
    """The model's turn."""

    role: Literal["assistant"]
    content: str | None
    """The text. Null where there are only calls."""
    refusal: None
    """Always null."""
    reasoning_content: NotRequired[str | None]
    """What the model thought before."""
    tool_calls: NotRequired[list[CalledTool] | None]
    """The calls that the model makes."""
    function_call: NotRequired[CalledFunction]
    """The call that the model makes, for requests with `functions`."""


class ChatChoice(AnswerChoice, ChoiceEnd):
    """One of the answers."""

    message: AnswerMessage
    """The model's turn."""
    logprobs: ChatLogprobs | None
    """The tokens with their logprobs, where they were requested."""


class ChatCompletion(WholeAnswer):
    """The whole answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    """The answers."""
    prompt_token_ids: NotRequired[list[int] | None]
    """The tokens of the prompt, where they were requested."""
    prompt_logprobs: NotRequired[list[dict[str, PromptToken] | None] | None]
    """The tokens of the prompt with their logprobs, where they were requested: each with its
    alternatives, by their ids. The first token has null."""


class CalledFunctionPiece(Answer):
    """A piece of the function that is called."""

    name: NotRequired[str | None]
    """Its name, with a call's beginning."""
    arguments: str
    """More of its arguments, as JSON text."""


class CalledToolPiece(Answer):
    """A piece of a call."""

    index: int
    """The place of the call among the answer's calls, from 0."""
    id: NotRequired[str | None]
    """The call's id, with its beginning alone."""
    type: NotRequired[Literal["function"] | None]
    """Functions are the only kind of tool. It comes with a call's beginning alone."""
    function: CalledFunctionPiece
    """More of the function that is called."""


class ChatDelta(Answer):
    """What a chunk adds to a choice."""

    role: NotRequired[Literal["assistant"] | None]
    """It comes with the first chunk alone."""
    content: NotRequired[str | None]
    """More of the text."""
    reasoning_content: NotRequired[str | None]
    """More of what the model thinks."""
    tool_calls: NotRequired[list[CalledToolPiece] | None]
    """More of the calls."""
    function_call: NotRequired[CalledFunctionPiece]
    """More of the call, for requests with `functions`."""


class ChatChunkChoice(AnswerChoice):
    """What a chunk has of one choice. Its last one has the finish reason."""

    delta: ChatDelta
    """What the chunk adds."""
    logprobs: ChatLogprobs | None
    """The tokens with their logprobs, where they were requested."""
    finish_reason: FinishWord | None
    """Why the answer ended; null before its end."""
    stop_reason: NotRequired[str | int | None]
    """The stop string, or the stop token, that ended the answer. Null for the model's own end."""


class ChatCompletionChunk(Chunk):
    """The data of one event. The last one has the timings, and the usage where it is requested;
    after it comes ``[DONE]``."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    """What is new of the answers. There are none in the chunk with the usage."""
    prompt_token_ids: NotRequired[list[int] | None]
    """The tokens of the prompt, where they were requested."""


class ChatShape:
    """See :class:`lmx.router.rendering.openai.ChoiceShape`."""

    chunk_object: Final = "chat.completion.chunk"
    complete_object: Final = "chat.completion"
    text_key: Final = "content"
    prompts_in_choices: Final = False

    def __init__(self, form: Form) -> None:
        self._form = form

    def first(self, index: int) -> ChatChunkChoice:
        """Return the choice that carries the role."""
        return _chunk(index, {"role": "assistant", "content": ""})

    def plain(self, index: int) -> ChatChunkChoice:
        return _chunk(index, {"content": ""})

    def entries(self, index: int, tokens: Sequence[TokenLogprob]) -> Sequence[Any]:
        return chat_entries(tokens)

    def rich(self, delta: Delta) -> ChatChunkChoice:
        """Return the choice for a delta that is more than text of the answer."""
        choice = self._delta_choice(delta)
        if self._form.token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def _delta_choice(self, delta: Delta) -> ChatChunkChoice:
        if delta.call is not None:
            fragment = _call_fragment(delta)
            if self._form.functions:
                return _chunk(delta.index, {"function_call": fragment["function"]})
            return _chunk(delta.index, {"tool_calls": [fragment]})
        if delta.kind is DeltaKind.REASONING:
            return _chunk(delta.index, {"reasoning_content": delta.text})
        choice = _chunk(delta.index, {"content": delta.text})
        if delta.logprobs:
            choice["logprobs"] = chat_logprobs(chat_entries(delta.logprobs))
        return choice

    def end(self, fact: ChoiceEnded) -> ChatChunkChoice:
        return {**_chunk(fact.index, {}), **end_object(fact, self._form)}

    def complete_choice(self, fact: ChoiceEnded, gathered: AccumulatedChoice) -> ChatChoice:
        text = "".join(gathered.content)
        message: AnswerMessage = {
            "role": "assistant",
            "content": None if gathered.calls and not text else text,
            "refusal": None,
        }
        if gathered.reasoning:
            message["reasoning_content"] = "".join(gathered.reasoning)
        calls = [_call(call) for call in gathered.calls.values()]
        if calls and self._form.functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        end = end_object(fact, self._form)
        choice: ChatChoice = {
            "index": fact.index,
            "message": message,
            "logprobs": chat_logprobs(gathered.logprobs) if self._form.logprobs else None,
            "finish_reason": end["finish_reason"],
            "stop_reason": end["stop_reason"],
        }
        if self._form.token_ids:
            choice["token_ids"] = gathered.token_ids
        return choice


def _chunk(index: int, delta: ChatDelta) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call(call: GatheredCall) -> CalledTool:
    return {
        "id": call.call_id or "",
        "type": "function",
        "function": {"name": call.name or "", "arguments": "".join(call.arguments)},
    }


def _call_fragment(delta: Delta) -> CalledToolPiece:
    # As at OpenAI, id, type and name come only with a call's beginning. Clients that join
    # fragments by adding strings would double them.
    call = delta.call
    assert call is not None
    if call.call_id is None:
        return {"index": call.index, "function": {"arguments": delta.text}}
    return {
        "index": call.index,
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": delta.text},
    }
