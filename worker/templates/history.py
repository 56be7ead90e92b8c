"""A conversation in OpenAI's form, as chat templates want it. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Message = dict[str, Any]

_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")
_KIMI: Final = re.compile(r"functions\..+:\d+")


def for_template(messages: Sequence[Mapping[str, Any]], tool_parser: str | None) -> list[Message]:
    """Return the messages in the form that most templates take.

    Fields that are null are left out, and content that is null is empty: templates print
    "None". The arguments of calls are objects, not text. Ids of calls are such as the family
    insists on. gpt-oss's template calls the reasoning ``thinking``, and takes it only where
    there is no content.
    """
    result = [_without_nulls(message) for message in messages]
    for message in result:
        if "tool_calls" in message:
            message["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
        if tool_parser == "harmony" and message.get("reasoning_content") and not message["content"]:
            message["thinking"] = message["reasoning_content"]
    if make_id := _ID_FORMS.get(tool_parser or ""):
        _rename_calls(result, make_id)
    return result


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the arguments of calls as JSON text: some templates take it."""
    return [
        message | {"tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _without_nulls(message: Mapping[str, Any]) -> Message:
    kept = {key: value for key, value in message.items() if value is not None}
    return {"role": message["role"], "content": "", **kept}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            value = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            function["arguments"] = value
    return {**call, "function": function}


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments", {}), ensure_ascii=False)
    return {**call, "function": function}


def _nine_characters(call: Mapping[str, Any], _: int) -> str:
    """Mistral's templates raise for an id that isn't nine letters and digits."""
    call_id = str(call.get("id", ""))
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _numbered(call: Mapping[str, Any], number: int) -> str:
    """Kimi reads names of tools out of the ids."""
    call_id = str(call.get("id", ""))
    return call_id if _KIMI.fullmatch(call_id) else f"functions.{call['function']['name']}:{number}"


_ID_FORMS: Final[Mapping[str, Callable[[Mapping[str, Any], int], str]]] = {
    "mistral": _nine_characters,
    "kimi_k2": _numbered,
}


def _rename_calls(
    messages: Sequence[Message], make_id: Callable[[Mapping[str, Any], int], str]
) -> None:
    new_ids: dict[str, str] = {}
    number = 0
    for message in messages:
        for call in message.get("tool_calls", ()):
            old = str(call.get("id", ""))
            call["id"] = new_ids[old] = make_id(call, number)
            number += 1
        old = message.get("tool_call_id", "")
        if old in new_ids:
            message["tool_call_id"] = new_ids[old]
