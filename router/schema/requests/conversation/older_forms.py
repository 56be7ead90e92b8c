"""Forms of messages and tools that clients send, and that today's API does not have. Pure.

Clients that were written for an older API, or for another server, send the same things in another
shape. This module puts a body into today's shape before it is checked; what it does not know, it
leaves for the check to refuse. Errors name the fields of today's shape.
"""

from typing import Any, Final

from lmx.router.schema.validation import arguments_text

_FUNCTIONS: Final = "functions"
_FUNCTION_CALL: Final = "function_call"
_SPEAKERS: Final = ("system", "developer", "user")


def has_functions(body: dict[str, Any]) -> bool:
    """Return whether a request has functions as OpenAI's API had them before tools. Its answer then
    has a ``function_call``, and no ``tool_calls``."""
    return bool(body.get(_FUNCTIONS)) and not body.get("tools")


def modernized(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a chat request in today's shape; the body itself if it has it already.

    - ``functions`` and ``function_call`` become ``tools`` and ``tool_choice``.
    - A tool, or the choice of one, whose name is next to its type gets its ``function``.
    - An assistant's ``function_call`` becomes its only tool call, and a message of the role
      ``function`` that call's result.
    - The ``arguments`` of a call that are an object become its JSON text.
    - A content that is null or an empty array, of somebody who can only speak, becomes "".
    """
    changed: dict[str, Any] = {}
    if has_functions(body):
        changed |= _tools_of(body)
    elif isinstance(tools := body.get("tools"), list):
        changed["tools"] = [_nested(tool) for tool in tools]
        changed["tool_choice"] = _nested(body.get("tool_choice"))
    if isinstance(messages := body.get("messages"), list):
        changed["messages"] = _Conversation().modernized(messages)
    return {**body, **changed} if changed else body


def _tools_of(body: dict[str, Any]) -> dict[str, Any]:
    functions, choice = body[_FUNCTIONS], body.get(_FUNCTION_CALL)
    if isinstance(functions, list):
        functions = [{"type": "function", "function": function} for function in functions]
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return {"tools": functions, "tool_choice": choice, "parallel_tool_calls": False}


def _nested(tool: Any) -> Any:
    """Return a tool, or a choice, with what is next to its type inside ``function``."""
    if not isinstance(tool, dict) or "function" in tool or "name" not in tool:
        return tool
    if tool.get("type", "function") != "function":
        return tool
    inner = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": inner}


class _Conversation:
    """Puts messages into today's shape one after the other; a result belongs to the call before
    it."""

    def __init__(self) -> None:
        self._calls = 0

    def modernized(self, messages: list[Any]) -> list[Any]:
        return [self._message(one) if isinstance(one, dict) else one for one in messages]

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("role") in _SPEAKERS:
            silent = "content" in message and message["content"] in (None, [])
            return {**message, "content": ""} if silent else message
        if message.get("role") == "function":
            return {**message, "role": "tool", "tool_call_id": self._call_id()}
        if message.get("content") == []:
            message = {**message, "content": ""}
        call = message.get(_FUNCTION_CALL)
        if isinstance(call, dict) and not message.get("tool_calls"):
            self._calls += 1
            call = {"id": self._call_id(), "type": "function", "function": call}
            message = {**message, "tool_calls": [call]}
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message = {**message, "tool_calls": [_written(one) for one in calls]}
        return message

    def _call_id(self) -> str:
        return f"call_{self._calls}"


def _written(call: Any) -> Any:
    """Return a call with its arguments as text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    arguments = arguments_text(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}
