"""Converts a conversation from OpenAI's form to the form that chat templates want. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

Message = dict[str, Any]

CallId = Callable[[str, str, int], str]
"""Makes the id of a call from the id that it has, the function's name, and how many calls of the
conversation come before it."""


class HistoryForm(NamedTuple):
    """How the chat template of a family differs from most others."""

    call_id: CallId | None = None
    """Makes ids of calls in the form that the template requires. None: it takes any id."""


PLAIN_HISTORY: Final = HistoryForm()


def for_template(messages: Sequence[Mapping[str, Any]], form: HistoryForm) -> list[Message]:
    """Return the messages as a template takes them.

    Fields that are null are left out, and null content becomes empty, because templates would print
    "None". The arguments of calls become objects, not text.
    """
    result = [_without_nulls(message) for message in messages]
    for message in result:
        if "tool_calls" in message:
            message["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
    if form.call_id is not None:
        _rename_calls(result, form.call_id)
    return result


def joined(*contents: Any) -> Any:
    """Return the contents of messages one behind the other: as a text, or, if one of them has parts
    that are no text, as a list of parts."""
    if all(isinstance(content, str) for content in contents):
        return "".join(contents)
    parts: list[Any] = []
    for content in contents:
        if not isinstance(content, str):
            parts += content
        elif content:
            parts.append({"type": "text", "text": content})
    return parts


def with_calls(
    messages: Sequence[Message], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[Message]:
    """Return the messages with each call as ``change`` makes it."""
    return [
        message | {"tool_calls": [change(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the arguments of calls as JSON text: some templates want that."""
    return with_calls(messages, _with_text)


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


def _rename_calls(messages: Sequence[Message], make_id: CallId) -> None:
    new_ids: dict[str, str] = {}
    number = 0
    for message in messages:
        for call in message.get("tool_calls", ()):
            old = str(call.get("id", ""))
            call["id"] = new_ids[old] = make_id(old, call["function"]["name"], number)
            number += 1
        old = message.get("tool_call_id", "")
        if old in new_ids:
            message["tool_call_id"] = new_ids[old]
