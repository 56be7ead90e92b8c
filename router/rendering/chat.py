"""The form of a choice of a chat completion, in chunks and whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob
from lmx.protocol.states import DeltaKind
from lmx.router.rendering.accumulator import AccumulatedChoice, GatheredCall
from lmx.router.rendering.envelope import Form, end_object
from lmx.router.rendering.logprobs import chat_entries, chat_logprobs


class ChatShape:
    """See :class:`lmx.router.rendering.chunks.ChoiceShape`."""

    chunk_object: Final = "chat.completion.chunk"
    whole_object: Final = "chat.completion"
    text_key: Final = "content"
    prompts_in_choices: Final = False

    def __init__(self, form: Form) -> None:
        self._form = form

    def first(self, index: int) -> dict[str, Any] | None:
        """Return the choice that carries the role."""
        return _chunk(index, {"role": "assistant", "content": ""})

    def plain(self, index: int) -> dict[str, Any]:
        """Return a choice with an empty text."""
        return _chunk(index, {"content": ""})

    def entries(self, index: int, tokens: Sequence[TokenLogprob]) -> Sequence[Any]:
        """Return the logprobs of a choice's next tokens."""
        return chat_entries(tokens)

    def rich(self, delta: Delta) -> dict[str, Any]:
        """Return the choice for a delta that is more than text of the answer."""
        choice = self._said(delta)
        return choice | {"token_ids": delta.token_ids} if self._form.token_ids else choice

    def _said(self, delta: Delta) -> dict[str, Any]:
        if delta.call is not None:
            fragment = _call_fragment(delta)
            if self._form.functions:
                return _chunk(delta.index, {"function_call": fragment["function"]})
            return _chunk(delta.index, {"tool_calls": [fragment]})
        if delta.kind is DeltaKind.REASONING:
            return _chunk(delta.index, {"reasoning_content": delta.text})
        choice = _chunk(delta.index, {"content": delta.text})
        if not delta.logprobs:
            return choice
        return choice | {"logprobs": chat_logprobs(chat_entries(delta.logprobs))}

    def end(self, fact: ChoiceEnded) -> dict[str, Any]:
        """Return the choice that says why it ended."""
        return _chunk(fact.index, {}) | end_object(fact, self._form)

    def whole(self, fact: ChoiceEnded, gathered: AccumulatedChoice) -> dict[str, Any]:
        """Return a choice that does not stream."""
        text = "".join(gathered.content)
        message: dict[str, Any] = {
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
        return {
            "index": fact.index,
            "message": message,
            "logprobs": chat_logprobs(gathered.logprobs) if self._form.logprobs else None,
            **end_object(fact, self._form),
            **({"token_ids": gathered.token_ids} if self._form.token_ids else {}),
        }


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call(call: GatheredCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": "".join(call.arguments)},
    }


def _call_fragment(delta: Delta) -> dict[str, Any]:
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
