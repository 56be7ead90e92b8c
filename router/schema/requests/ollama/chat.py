"""What a request of Ollama's chat may hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lmx.protocol.messages.data import Generate
from lmx.protocol.states import MediaKind
from lmx.router.media.source import MediaSource
from lmx.router.schema.requests.conversation.messages import MAX_CALLS, MAX_MESSAGES
from lmx.router.schema.requests.conversation.tools import MAX_TOOLS, Tool, ToolFields, tool_use_of
from lmx.router.schema.requests.generation import generate_of
from lmx.router.schema.requests.ollama.common import OllamaFields
from lmx.router.schema.validation import CallArguments, Strict, arguments_text, validated

LOAD: Final = "."
"""The prompt that has a model loaded. Of its answer nothing is made, and nothing is shown."""


class EarlierFunction(Strict):
    """The function of an earlier call."""

    name: str
    """The function that was called."""
    arguments: CallArguments | None = None
    """The arguments, as an object. Default: none."""


class EarlierCall(Strict):
    """One of the calls of an earlier message."""

    id: str | None = None
    """The call's id. Default: a new one."""
    function: EarlierFunction
    """The function, and the arguments."""


class OllamaMessage(Strict):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    """Who speaks."""
    content: str | None = None
    """The text. Default: none."""
    thinking: str | None = None
    """What the assistant thought."""
    images: Annotated[list[str], Field(max_length=MAX_CALLS)] | None = None
    """Pictures as base64, before the text."""
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = (
        None
    )
    """The calls that the assistant made."""
    tool_name: str | None = None
    """The function whose result this is, with the role `tool`."""
    tool_call_id: str | None = None
    """The call whose result this is. Default: the first one without a result, of `tool_name` if
    that is given."""


class OllamaChatRequest(OllamaFields):
    """The body of POST /api/chat."""

    messages: (
        Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    """The conversation until now. None or an empty one: the model is loaded, and with a
    `keep_alive` of 0 unloaded."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Functions that the model may call. Default: none."""

    @property
    def only_loads(self) -> bool:
        """Whether there is nothing to answer."""
        return not self.messages


def parse_ollama_chat(
    body: dict[str, Any],
) -> tuple[OllamaChatRequest, Generate, tuple[MediaSource, ...]]:
    """Return the checked request, the request to a worker, without ids, credit and media, and where
    the media come from. Raises :class:`RequestError` (400) for the first fault."""
    request = validated(OllamaChatRequest, body)
    if not request.messages:
        return request, loading(request), ()
    messages, sources = chat_messages(request.messages)
    tool_use = tool_use_of(ToolFields(tools=request.tools))
    return request, generation(request, messages=messages, tool_use=tool_use), sources


def loading(request: OllamaFields) -> Generate:
    """Return the request that does nothing but have the model loaded."""
    return generation(
        request, prompt=LOAD, max_tokens=0, structure=None, parse=False, top_logprobs=None
    )


def generation(request: OllamaFields, **fields: Any) -> Generate:
    """Return the request to a worker with what both kinds of request share, and ``fields``."""
    generate = replace(
        generate_of(request),
        structure=request.structure,
        thinking=request.thinking,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )
    return replace(generate, **fields)


def with_images(
    text: str, images: Sequence[str], param: str, sources: list[MediaSource]
) -> str | list[dict[str, Any]]:
    """Return what a model sees and reads: one string if there are no pictures. These are added to
    ``sources``, and numbered by their place there."""
    if not images:
        return text
    parts: list[dict[str, Any]] = []
    for index, image in enumerate(images):
        parts.append({"type": MediaKind.IMAGE.value, "media": len(sources)})
        sources.append(MediaSource(MediaKind.IMAGE, f"{param}[{index}]", image))
    return [*parts, {"type": "text", "text": text}] if text else parts


def chat_messages(
    turns: list[OllamaMessage],
) -> tuple[tuple[dict[str, Any], ...], tuple[MediaSource, ...]]:
    """Return a conversation as the messages of a chat request, and where its pictures come from. A
    result of a tool that names no call belongs to the first call that has none; so does one that
    names a call which has no name of its own."""
    sources: list[MediaSource] = []
    messages: list[dict[str, Any]] = []
    open_calls: list[_OpenCall] = []
    made = 0
    for index, turn in enumerate(turns):
        path = f"messages[{index}]"
        content = with_images(turn.content or "", turn.images or (), f"{path}.images", sources)
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if turn.tool_calls and turn.role == "assistant":
            calls = [_call(call, made + place) for place, call in enumerate(turn.tool_calls)]
            made += len(calls)
            open_calls = [
                _OpenCall(made_call["id"], call.function.name, is_named=call.id is not None)
                for made_call, call in zip(calls, turn.tool_calls, strict=True)
            ]
            message["tool_calls"] = calls
        if turn.role == "tool":
            message |= _result_of(turn, open_calls)
        messages.append(message)
    return tuple(messages), tuple(sources)


def _call(call: EarlierCall, number: int) -> dict[str, Any]:
    function = {
        "name": call.function.name,
        "arguments": arguments_text(call.function.arguments or {}),
    }
    return {"id": call.id or f"call_{number}", "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call that has no result yet."""

    call_id: str
    function: str
    is_named: bool
    """Whether the client gave it the id."""


def _result_of(turn: OllamaMessage, open_calls: list[_OpenCall]) -> dict[str, Any]:
    """Return the fields that tie a result to its call, and take the call from the open ones. A
    result of no call has at most the name of its function."""
    wanted, name = turn.tool_call_id, turn.tool_name
    found = next((one for one in open_calls if one.call_id == wanted), None) or next(
        (
            one
            for one in open_calls
            if name in (None, one.function) and not (one.is_named and wanted is not None)
        ),
        None,
    )
    if found is None:
        return {} if name is None else {"name": name}
    open_calls.remove(found)
    return {"tool_call_id": found.call_id, "name": found.function}
