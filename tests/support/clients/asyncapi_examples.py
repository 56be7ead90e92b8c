"""The examples of an AsyncAPI document that has lost its indentation.

YAML without indentation is read with the help of a table: a key belongs to the innermost open
object that may hold it, and a dash begins an item of the innermost open list.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

_FIELDS: Final[dict[str, dict[str, str]]] = {
    "payload": {
        "id": "", "object": "", "created": "", "model": "", "stream": "",
        "choices": "choice", "messages": "message", "usage": "usage",
    },
    "message": {"role": "", "content": ""},
    "choice": {"index": "", "delta": "delta", "finish_reason": ""},
    "delta": {"role": "", "content": "", "tool_calls": "call"},
    "call": {"index": "", "id": "", "type": "", "function": "function"},
    "function": {"name": "", "arguments": ""},
    "usage": {"prompt_tokens": "", "completion_tokens": "", "total_tokens": ""},
}  # fmt: skip
"""Object -> its fields, and what kind of object is in each, if one is."""

_LISTS: Final = frozenset({"choices", "messages", "tool_calls"})
_FIELD: Final = re.compile(r"^(- )?(\w+):(?: (.*))?$")


def asyncapi_examples(text: str) -> Iterator[tuple[int, str, Any]]:
    """Return line, name and payload of each example; a payload may be a plain value."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("- name: ") and _is_example(lines, number):
            start = next(i for i in range(number, len(lines)) if lines[i].startswith("payload:"))
            inline = lines[start].removeprefix("payload:").strip()
            payload = yaml.safe_load(inline) if inline else _object(lines[start + 1 :])
            yield number + 1, line.removeprefix("- name: "), payload


def _is_example(lines: list[str], number: int) -> bool:
    # The document's tags are names in a list too.
    return lines[number + 1].startswith("summary:")


def _object(lines: list[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    open_objects: list[tuple[str, dict[str, Any]]] = [("payload", root)]
    open_lists: list[tuple[str, list[Any], int]] = []
    for line in lines:
        match = _FIELD.match(line)
        if match is None or (match[1] and match[2] == "name"):
            break
        dash, key, value = match[1], match[2], match[3]
        if dash:
            kind, items, depth = open_lists[-1]
            item: dict[str, Any] = {}
            items.append(item)
            open_objects[depth:] = [(kind, item)]
        while open_objects and key not in _FIELDS[open_objects[-1][0]]:
            open_objects.pop()
        if not open_objects:
            break
        kind, into = open_objects[-1]
        inner = _FIELDS[kind][key]
        if value is not None:
            into[key] = yaml.safe_load(value)
        elif key in _LISTS:
            into[key] = []
            open_lists.append((inner, into[key], len(open_objects)))
        else:
            into[key] = {}
            open_objects.append((inner, into[key]))
    return root
