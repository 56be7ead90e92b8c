"""Grammars for a call's arguments as Python and Gemma 4 write them. Pure.

Each function returns None where its form can't say what the schema asks for: the call is then
written as JSON.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from typing import Any, Final

from lmx.worker.formats.arguments import (
    ANNOTATIONS,
    PLAIN_NUMBER,
    Rules,
    Schema,
    TagForm,
    is_bare,
    members,
    separated,
    text_value,
)
from lmx.worker.schemas.grammar import guided, quoted

# Backslash and u stands for another character in Python, where it is half of a pair.
_PYTHON_ESCAPES: Final = 'nrbtf\\"'
_SCALARS: Final = ("string", "integer", "number", "boolean", "null")
# Keywords that add no values of another type.
_NARROWING: Final = ANNOTATIONS | {
    "type",
    "enum",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "items",
    "minItems",
    "maxItems",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
}
_GEMMA_STRING: Final = TagForm("", '<|"|>', '<|"|>', strips=False, any_json=True)


def python_arguments(rules: Rules, parameters: Schema) -> str | None:
    """Return the arguments as Python writes them: ``a="b", c=1``."""
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
    if not isinstance(schema, dict) or not _NARROWING.issuperset(schema):
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


def gemma_arguments(rules: Rules, schema: Schema, text: Callable[[str], str]) -> str | None:
    """Return an object as Gemma 4 writes it: ``{a:<|"|>b<|"|>,c:[1,2]}``."""
    found = members(schema)
    if found is None:
        return None
    items = []
    for one in found:
        value = _gemma_value(rules, one.schema, text)
        if value is None or not re.fullmatch(r"[\w.$-]+", one.name):
            return None
        items.append((f"{quoted(one.name + ':')} {value}", one.required))
    return f'"{{" {separated(rules, items, quoted(","))} "}}"'


def _gemma_value(rules: Rules, schema: Schema, text: Callable[[str], str]) -> str | None:
    if schema.get("type") == "string":
        body = text_value(rules, schema, _GEMMA_STRING, text)
        if body is not None:
            return f"{text(_GEMMA_STRING.closing)} {body}"
    if _has_no_object(schema):
        return f"%json {json.dumps(guided(schema))}"
    if schema.get("type") == "object":
        return gemma_arguments(rules, schema, text)
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, dict):
        if not (ANNOTATIONS | {"type", "items", "$defs", "definitions"}).issuperset(schema):
            return None
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        one = _gemma_value(rules, {**items, **shared}, text)
        return one and f'"[" ({one} ("," {one})*)? "]"'
    return None


def _has_no_object(schema: Any) -> bool:
    """Return whether a value can't be an object, whose keys Gemma 4 writes without quotes."""
    if not isinstance(schema, dict):
        return False
    match schema.get("type"):
        case str() as kind if kind in _SCALARS:
            return True
        case "array" if _NARROWING.issuperset(schema):
            return _has_no_object(schema.get("items"))
        case list() as kinds:
            return set(kinds) <= set(_SCALARS)
    return "anyOf" in schema and all(_has_no_object(one) for one in schema["anyOf"])
