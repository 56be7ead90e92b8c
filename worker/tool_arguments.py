"""Grammars for a call's arguments in the forms that are not plain JSON. Pure.

Each function returns None where its form can't say what the schema asks for, or where the
family's parser would not read it back as that: the call is then written as JSON.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lmx.worker.structure_grammar import guided, quoted

Schema = Mapping[str, Any]

_ANNOTATIONS: Final = frozenset(
    {"description", "title", "$comment", "default", "examples", "deprecated", "readOnly"}
)
_OBJECT: Final = _ANNOTATIONS | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
}
_TEXT: Final = _ANNOTATIONS | {"type", "enum", "const", "minLength", "maxLength"}
# Without an exponent: a family's parser takes 1e999 for infinity.
_NUMBER: Final = "/-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?/"
# Backslash and u stands for another character in Python, where it is half of a pair.
_PYTHON_ESCAPES: Final = 'nrbtf\\"'


@dataclass(slots=True)
class Rules:
    """A Lark grammar that is being written."""

    lines: list[str] = field(default_factory=list)

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule and return its name."""
        return self._add("r", options, body)

    def terminal(self, body: str) -> str:
        """Add a terminal and return its name."""
        return self._add("T", "", body)

    def _add(self, prefix: str, options: str, body: str) -> str:
        name = f"{prefix}{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name


@dataclass(frozen=True, slots=True)
class Member:
    """An argument: its name, what it may be, and whether it must be there."""

    name: str
    schema: Schema
    required: bool


def members(parameters: Schema) -> list[Member] | None:
    """Return the arguments of an object with properties alone, None for any other schema."""
    properties = parameters.get("properties")
    required = parameters.get("required", [])
    plain = parameters.get("type", "object") == "object" and _OBJECT.issuperset(parameters)
    if not plain or not isinstance(properties, dict) or not isinstance(required, list):
        return None
    # Without properties of its own it is a map, whose keys are the model's to choose.
    if not properties and isinstance(parameters.get("additionalProperties"), dict):
        return None
    if not properties.keys() >= set(required):
        return None
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    found = []
    for name, schema in properties.items():
        if not isinstance(schema, dict) or shared.keys() & schema.keys():
            return None
        found.append(Member(name, {**schema, **shared}, name in required))
    return found


@dataclass(frozen=True, slots=True)
class TagForm:
    """How a family writes an argument: ``open`` and ``close`` around its value, the name in
    place of ``{}``.

    ``closing``: the text at which the parser ends a value, wherever it is. ``strips``: it takes
    white space around a value away. ``any_json``: what is no string is read as JSON, else only
    by one of the plain types.
    """

    open: str
    close: str
    closing: str
    strips: bool
    any_json: bool


def tagged_arguments(
    rules: Rules, parameters: Schema, form: TagForm, text: Callable[[str], str]
) -> str | None:
    """Return the arguments as tags. ``text`` turns text with special tokens into Lark."""
    arguments = members(parameters)
    if arguments is None:
        return None
    bodies = []
    for one in arguments:
        if not re.fullmatch(r"[\w.$-]+", one.name):
            return None
        value = _tagged_value(rules, one.schema, form, text)
        if value is None:
            return None
        body = f"{text(form.open.format(one.name))} {value}"
        bodies.append(body if one.required else f"({body})?")
    return " ".join(bodies)


def _tagged_value(
    rules: Rules, schema: Schema, form: TagForm, text: Callable[[str], str]
) -> str | None:
    kind = schema.get("type")
    if kind == "string":
        return _tagged_text(rules, schema, form, text)
    close = text(form.close)
    if kind == "number" and _is_bare(schema):
        return f"{rules.terminal(_NUMBER)} {close}"
    simple = kind in ("integer", "number", "boolean", "object", "array")
    if simple or form.any_json:
        return f"%json {json.dumps(guided(schema))} {close}"
    return None


def _tagged_text(
    rules: Rules, schema: Schema, form: TagForm, text: Callable[[str], str]
) -> str | None:
    if not (_TEXT | {"$defs", "definitions"}).issuperset(schema):
        return None
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        if not _sayable(choices, form) or "minLength" in schema or "maxLength" in schema:
            return None
        return f"{rules.terminal(' | '.join(map(quoted, choices)))} {text(form.close)}"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least and form.strips:
        return None
    # A parser takes "null" for none even where a string is asked for.
    body = (
        f"/(?s:.{{{least},{most}}})/ & ~/(?s:.*){_escaped(form.closing)}(?s:.*)/"
        r" & ~/\s*[nN][uU][lL][lL]\s*/"
    )
    content = rules.terminal(body)
    close = text(form.close)
    if not close.startswith('"'):
        # A special token ends it, which is no text.
        return f"{content} {close}"
    return rules.rule(rules.terminal(f"{content} {close}"), "[lazy]")


def _sayable(choices: Any, form: TagForm) -> bool:
    return isinstance(choices, list) and all(
        isinstance(one, str)
        and form.closing not in one
        and one.strip().lower() != "null"
        and (one == one.strip() if form.strips else one == one.strip("\n"))
        and one
        for one in choices
    )


def _escaped(text: str) -> str:
    return re.sub(r"([^\w])", r"\\\1", text).replace("\\<", "<").replace("\\>", ">")


def python_arguments(rules: Rules, parameters: Schema) -> str | None:
    """Return the arguments as Python writes them: ``a="b", c=1``."""
    arguments = members(parameters)
    if arguments is None:
        return None
    items = []
    for one in arguments:
        if not one.name.isidentifier() or keyword.iskeyword(one.name):
            return None
        if _is_bare(one.schema) and one.schema["type"] == "boolean":
            value = '("True" | "False")'
        elif _is_bare(one.schema) and one.schema["type"] == "number":
            value = rules.terminal(_NUMBER)
        elif _same_in_python(one.schema):
            value = f"%json {json.dumps(guided(one.schema, escapes=_PYTHON_ESCAPES))}"
        else:
            return None
        items.append((f"{quoted(one.name + '=')} {value}", one.required))
    return separated(rules, items, '", "')


def _is_bare(schema: Schema) -> bool:
    return schema.keys() - _ANNOTATIONS - {"$defs", "definitions"} == {"type"}


def _same_in_python(schema: Any) -> bool:
    """Return whether JSON of this schema is Python too: true, false and null are not."""
    if not isinstance(schema, dict):
        return False
    match schema.get("type"):
        case "string":
            return all(isinstance(one, str) for one in schema.get("enum", []))
        case "integer":
            return True
        case "number":
            return "enum" in schema or {"minimum", "maximum"} <= schema.keys()
        case "array":
            return _same_in_python(schema.get("items"))
        case "object":
            inner = members({**schema, "additionalProperties": False})
            closed = schema.get("additionalProperties") is False
            return closed and inner is not None and all(_same_in_python(m.schema) for m in inner)
    return False


def separated(rules: Rules, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return a list in the given order, in which only the required items must be there."""
    # ``begun``: something was written before; ``fresh``: nothing was.
    begun = fresh = rules.rule('""')
    for body, required in reversed(items):
        with_it = f"{separator} {body} {begun}"
        alone = f"{body} {begun}"
        if required:
            begun, fresh = rules.rule(with_it), rules.rule(alone)
        else:
            begun = rules.rule(f"{with_it} | {begun}")
            fresh = rules.rule(f"{alone} | {fresh}")
    return fresh


_GEMMA_STRING: Final = TagForm("", '<|"|>', '<|"|>', strips=False, any_json=True)


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
        body = _tagged_text(rules, schema, _GEMMA_STRING, text)
        if body is not None:
            return f"{text(_GEMMA_STRING.closing)} {body}"
    if _has_no_object(schema):
        return f"%json {json.dumps(guided(schema))}"
    if schema.get("type") == "object":
        return gemma_arguments(rules, schema, text)
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, dict):
        if not (_ANNOTATIONS | {"type", "items", "$defs", "definitions"}).issuperset(schema):
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
        case "string" | "integer" | "number" | "boolean" | "null":
            return True
        case "array":
            return _has_no_object(schema.get("items"))
        case list() as types:
            return not {"object", "array"}.intersection(types)
    return "anyOf" in schema and all(_has_no_object(one) for one in schema["anyOf"])
