"""The grammar of calls as Python writes them. Pure."""

from __future__ import annotations

import json
import keyword
from typing import Any, Final

from lmx.worker.formats.family import Rules, SpecialTokens, Tool
from lmx.worker.formats.forms.arguments import (
    NARROWING,
    PLAIN_NUMBER,
    Schema,
    is_bare,
    members,
    separated,
)
from lmx.worker.schemas.grammar import guided, quoted

# Backslash and u stands for another character in Python, where it is half of a pair.
_PYTHON_ESCAPES: Final = 'nrbtf\\"'


def python_call(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
    """Return the grammar of a call with keywords: ``name(a="b", c=1)``."""
    arguments = _arguments(rules, tool.parameters) if tool.name.isidentifier() else None
    return arguments and f'{quoted(tool.name + "(")} {arguments} ")"'


def _arguments(rules: Rules, parameters: Schema) -> str | None:
    arguments = members(parameters)
    if arguments is None:
        return None
    items = []
    for one in arguments:
        if not one.name.isidentifier() or keyword.iskeyword(one.name):
            return None
        if is_bare(one.schema) and one.schema["type"] == "boolean":
            value = '("True" | "False")'
        elif is_bare(one.schema) and one.schema["type"] == "number":
            value = rules.terminal(PLAIN_NUMBER)
        elif _same_in_python(one.schema):
            value = f"%json {json.dumps(guided(one.schema, escapes=_PYTHON_ESCAPES))}"
        else:
            return None
        items.append((f"{quoted(one.name + '=')} {value}", one.required))
    return separated(rules, items, '", "')


def _same_in_python(schema: Any) -> bool:
    """Return whether JSON of this schema is Python too: true, false and null are not."""
    if not isinstance(schema, dict) or not NARROWING.issuperset(schema):
        return False
    match schema.get("type"):
        case "string" | "integer":
            return True
        case "number":
            return "enum" in schema or {"minimum", "maximum"} <= schema.keys()
        case "array" if "enum" not in schema:
            return _same_in_python(schema.get("items"))
        case "object" if schema.get("additionalProperties") is False:
            inner = members(schema)
            return inner is not None and all(_same_in_python(one.schema) for one in inner)
    return False
