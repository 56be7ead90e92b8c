"""Describes tools in words, for templates that know no tools, in the form that Hermes introduced.
Pure.

The words are lmx's own. The form is the one that most models have seen in training, and the one
that the JSON form of :mod:`lmx.worker.formats.families.json` reads.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from lmx.worker.templates.history import Message, joined


def with_tools_as_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Return the messages with calls and results as text, and with the tools in the system message.

    The results of consecutive calls become one user message: many templates want user and assistant
    to take turns.
    """
    result: list[Message] = []
    runs = groupby(with_calls_as_text(messages), lambda message: bool(message["role"] == "tool"))
    for results, run in runs:
        if results:
            shown = (_result(message["content"]) for message in run)
            content = joined(next(shown), *(part for each in shown for part in ("\n", each)))
            result.append({"role": "user", "content": content})
        else:
            result += run
    return _instructed(result, tools) if tools else result


def with_calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with calls as text, behind the text of their turn."""
    result: list[Message] = []
    for message in messages:
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        if "tool_calls" in message:
            calls = "\n".join(_call(call["function"]) for call in message["tool_calls"])
            kept["content"] = joined(kept["content"], "\n", calls) if kept["content"] else calls
        result.append(kept)
    return result


def _instructed(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        "You can call functions. Their signatures, as JSON, one on a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call a function, answer with its name and its arguments as a JSON object:\n"
        '<tool_call>\n{"name": "the name", "arguments": {"parameter": "value"}}\n</tool_call>\n'
        "Give one such block for each call. The results come in <tool_response> blocks. "
        "Answer in plain words when no function is needed."
    )
    if messages and messages[0]["role"] == "system":
        content = messages[0]["content"]
        first = messages[0] | {"content": joined(content, f"\n\n{text}") if content else text}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _result(content: Any) -> Any:
    return joined("<tool_response>\n", content, "\n</tool_response>")


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
