"""The items of a response's output. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from pydantic import Field

from lmx.router.http.responses import Answer
from lmx.router.rendering.responses.sealing import sealed
from lmx.router.rendering.responses.tools import CalledTool, InputReader

RESPONSE: Final = "resp_"
"""The beginning of a response's id."""

_OUTPUT_ID: Final = re.compile(r"(?:msg|rs|fc|ctc|cmp)_([0-9a-f]{24})_[0-9]{1,6}")

COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"
IN_PROGRESS: Final = "in_progress"


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TokenChance(Answer):
    """A likely token."""

    token: str
    """The token's text."""
    logprob: float
    """How likely it was."""
    bytes: NotRequired[list[int] | None]
    """The bytes of the text. A stream's events have none."""


class ChosenToken(TokenChance):
    """A token of a text."""

    top_logprobs: list[TokenChance]
    """The likeliest tokens in its place."""


class OutputText(Answer):
    """A text."""

    type: Literal["output_text"]
    text: str
    """The text; empty where a stream's part begins."""
    annotations: list[Any]
    """Always empty."""
    logprobs: Sequence[ChosenToken]
    """Its tokens, if they were requested."""


class ThoughtText(Answer):
    """What the model thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: str
    """The thoughts; empty where a stream's part begins."""


class OutputMessage(Answer):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]
    """One text; none where a stream's item begins."""


class OutputReasoning(Answer):
    """What the model thought."""

    id: str
    type: Literal["reasoning"]
    summary: list[ThoughtText]
    """The thoughts, if a summary was requested."""
    content: NotRequired[list[ThoughtText] | None]
    """The thoughts otherwise."""
    encrypted_content: NotRequired[str | None]
    """The thoughts as a token that brings them back, if that was requested."""
    status: ItemStatus


class CallHead(Answer):
    """What calls of functions and of custom tools have."""

    id: str
    call_id: str
    """The id that the call's output names."""
    name: str
    """The function, or the tool."""
    namespace: NotRequired[str | None]
    """The namespace that it is in."""


class OutputFunctionCall(CallHead):
    """A call of a function."""

    type: Literal["function_call"]
    arguments: str
    """The arguments, as JSON text; empty where a stream's item begins."""
    status: ItemStatus


class OutputCustomCall(CallHead):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    input: str
    """What the tool is given; empty where a stream's item begins."""


class OutputCompaction(Answer):
    """A summary of the conversation until here."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str
    """The summary as a token, which brings it back where it is sent again."""


OutputItem = Annotated[
    OutputMessage | OutputReasoning | OutputFunctionCall | OutputCustomCall | OutputCompaction,
    Field(discriminator="type"),
]


@dataclass(frozen=True, slots=True)
class ItemForm:
    """How a request wants the items of its response."""

    called: Mapping[str, CalledTool]
    """What the functions stand for that its worker knows."""
    summarizes: bool = False
    """Whether thoughts are a summary."""
    sealing_key: bytes | None = None
    """The key for the tokens of thoughts; None: thoughts have no token."""

    def message(
        self, response_id: str, index: int, text: str, logprobs: Sequence[Any], status: ItemStatus
    ) -> OutputMessage:
        """Return a message of the model, with the entries of its logprobs. Without a text it has no
        part yet."""
        part = text_part(text, logprobs)
        begun = bool(text or logprobs)
        return {
            "id": _item_id(response_id, "msg", index),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part] if begun else [],
        }

    def reasoning(
        self, response_id: str, index: int, thoughts: str, status: ItemStatus
    ) -> OutputReasoning:
        """Return what the model thought. Without thoughts it has no part yet."""
        parts = [thought_part(thoughts, summarizes=self.summarizes)] if thoughts else []
        item: OutputReasoning = {
            "id": _item_id(response_id, "rs", index),
            "type": "reasoning",
            "summary": parts if self.summarizes else [],
            "status": status,
        }
        if not self.summarizes:
            item["content"] = parts
        if self.sealing_key is not None and status != IN_PROGRESS:
            item["encrypted_content"] = sealed(thoughts, self.sealing_key)
        return item

    def call(
        self,
        response_id: str,
        index: int,
        call_id: str | None,
        name: str | None,
        given: str,
        status: ItemStatus,
    ) -> OutputFunctionCall | OutputCustomCall:
        """Return a call. ``given`` are the arguments of a function, or the input of a custom
        tool."""
        tool = self.tool(name)
        own_id = _item_id(response_id, "ctc" if tool.custom else "fc", index)
        head: CallHead = {"id": own_id, "call_id": call_id or "", "name": tool.name}
        if tool.namespace is not None:
            head["namespace"] = tool.namespace
        if tool.custom:
            return {**head, "type": "custom_tool_call", "input": given}
        return {**head, "type": "function_call", "arguments": given, "status": status}

    def tool(self, name: str | None) -> CalledTool:
        """Return what a function stands for; a name that is not known stands for a function."""
        return self.called.get(name or "") or CalledTool(name or "")

    def given(self, name: str | None, arguments: str) -> str:
        """Return what a call's tool is given."""
        if not self.tool(name).custom:
            return arguments
        reader = InputReader()
        return reader.read(arguments) + reader.end()


def compaction(response_id: str, summary: str, key: bytes) -> OutputCompaction:
    """Return the item of a summary, with its token of the key."""
    own_id = _item_id(response_id, "cmp", 0)
    return {"id": own_id, "type": "compaction", "encrypted_content": sealed(summary, key)}


def _item_id(response_id: str, prefix: str, index: int) -> str:
    # It names the response too, so that the item is found by it.
    return f"{prefix}_{response_id.removeprefix(RESPONSE)}_{index}"


def response_of_item(wanted: str) -> str | None:
    """Return the id of the response that an item is part of; None if the id is of another form."""
    found = _OUTPUT_ID.fullmatch(wanted)
    return None if found is None else f"{RESPONSE}{found[1]}"


def text_part(text: str, logprobs: Sequence[Any]) -> OutputText:
    """Return a text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def thought_part(text: str, *, summarizes: bool) -> ThoughtText:
    """Return the thoughts of an item."""
    return {"type": "summary_text" if summarizes else "reasoning_text", "text": text}


_KINDS: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}
"""The beginning of the ids of items of each type."""


def listed_items(response_id: str, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of an input as OpenAI lists them: each with its type, an id and a status,
    and the content of messages as parts."""
    listed = []
    for index, given in enumerate(items):
        kind = given.get("type") or "message"
        own_id = given.get("id") or f"{_item_id(response_id, _KINDS.get(kind, 'item'), index)}_in"
        item = {**given, "type": kind, "id": own_id}
        if kind == "message":
            item["content"] = _whole_parts(_parts(given.get("content"), given.get("role")))
        if kind in ("message", "function_call", "function_call_output"):
            item["status"] = given.get("status") or COMPLETED
        listed.append(item)
    return listed


def conversation_items(
    items: Sequence[Mapping[str, Any]], new_id: Callable[[], str]
) -> list[dict[str, Any]]:
    """Return items as OpenAI shows those of a conversation: as :func:`listed_items` does, each with
    an id of its own, and with the fields that its types need."""
    shown = []
    for given in items:
        (item,) = listed_items(RESPONSE, [{**given, "id": None}])
        kind = item["type"]
        item["id"] = f"{_KINDS.get(kind, 'item')}_{new_id()}"
        match kind:
            case "reasoning":
                item["summary"] = item.get("summary") or []
            case "function_call":
                arguments = item.get("arguments", "{}")
                if not isinstance(arguments, str):
                    arguments = orjson.dumps(arguments).decode()
                item["arguments"] = arguments
            case "function_call_output" | "custom_tool_call_output":
                item["output"] = _whole_parts(item.get("output") or "")
            case "additional_tools":
                item.setdefault("role", "developer")
        shown.append(item)
    return shown


def _whole_parts(content: Any) -> Any:
    """Return the content of an item with the fields of its parts that may be left out."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        match part["type"]:
            case "output_text":
                parts.append({**part, "annotations": [], "logprobs": []})
            case "input_image":
                parts.append({**part, "detail": part.get("detail") or "auto"})
            case _:
                parts.append(part)
    return parts


def _parts(content: Any, role: Any) -> Any:
    if isinstance(content, list):
        return content
    if role == "assistant":
        return [text_part(content or "", [])]
    return [{"type": "input_text", "text": content or ""}]
