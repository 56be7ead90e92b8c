"""Grammars for a call's arguments between tags, and what the grammars of all forms except JSON
share. Pure.

Each function returns None if its form can't express what the schema requires, or if the family's
parser would not read it back correctly: the call is then written as JSON.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from lmx.worker.formats.family import Rules
from lmx.worker.schemas.dialects import TYPES, SchemaFault, Standalone, standalone
from lmx.worker.schemas.disjoint import Lookup, types_of
from lmx.worker.schemas.grammar import escaped, guided, quoted

Schema = Mapping[str, Any]

ANNOTATIONS: Final = frozenset(
    {"description", "title", "$comment", "default", "examples", "deprecated", "readOnly"}
)
_REFERENCE: Final = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef)"')
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_MEMBERS: Final = frozenset({"properties", "required", "additionalProperties"})
_OBJECT: Final = ANNOTATIONS | _DEFINITIONS | _MEMBERS | {"type", "$schema"}
_TEXT: Final = ANNOTATIONS | {"type", "enum", "const", "minLength", "maxLength"}
# Keywords that add no values of another type.
NARROWING: Final = (ANNOTATIONS | _DEFINITIONS | _MEMBERS).union(
    ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    ("minLength", "maxLength", "pattern", "format", "items", "minItems", "maxItems"),
)
# What arguments refer to is in the grammar of each, and its text takes 0.3 s for a million
# characters.
_MAX_SHARED_CHARS: Final = 1_000_000
# Without an exponent: a family's parser takes 1e999 for infinity.
PLAIN_NUMBER: Final = "/-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?/"


@dataclass(frozen=True, slots=True)
class Member:
    """An argument."""

    name: str
    schema: Schema
    """The schema of its value."""
    required: bool
    """Whether it must be present."""


def members(parameters: Schema) -> list[Member] | None:
    """Return the arguments of an object with properties only; None for any other schema."""
    properties = parameters.get("properties")
    required = parameters.get("required", [])
    plain = parameters.get("type", "object") == "object" and _OBJECT.issuperset(parameters)
    if not plain or not isinstance(properties, dict) or not isinstance(required, list):
        return None
    # An object without properties is a map, whose keys the model chooses.
    if not properties and isinstance(parameters.get("additionalProperties"), dict):
        return None
    if not properties.keys() >= set(required):
        return None
    shared = _shared(parameters)
    if shared and len(json.dumps(shared)) * _references(properties) > _MAX_SHARED_CHARS:
        return None
    found = []
    for name, schema in properties.items():
        if not isinstance(schema, dict) or shared.keys() & schema.keys():
            return None
        whole = {**schema, **shared} if shared and _references(schema) else schema
        found.append(Member(name, whole, name in required))
    return found


def _shared(parameters: Schema) -> dict[str, Any]:
    """Return the definitions that the arguments share."""
    return {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}


def _references(schema: Schema) -> int:
    """Return how many references a schema has at most."""
    return len(_REFERENCE.findall(json.dumps(schema)))


class ArgumentTypes:
    """The types that a tool's schema allows its arguments. They are looked up once for each, and
    the definitions that the arguments share are read once for all."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._known: dict[str, frozenset[str]] = {}

    def of(self, key: str) -> frozenset[str]:
        """Return the types of an argument; none if all are allowed, or if they can't be read."""
        schema = self._parameters["properties"].get(key)
        if not isinstance(schema, dict):
            return frozenset()
        if key not in self._known:
            try:
                self._known[key] = self._read(key, schema)
            except RecursionError:
                # Schemas that nobody enforces may be nested as deeply as a client likes.
                self._known[key] = frozenset()
        return self._known[key]

    def _read(self, key: str, schema: Schema) -> frozenset[str]:
        if not _references(schema):
            return _types(schema)
        if (source := self._referring) is not None:
            return _some(types_of(source.schema["properties"][key], Lookup(source)))
        return _types({**_shared(self._parameters), **schema})

    @cached_property
    def _referring(self) -> Standalone | None:
        """The arguments that refer to other schemas; None if one of them can't be read."""
        properties = {
            key: schema
            for key, schema in self._parameters["properties"].items()
            if isinstance(schema, dict) and _references(schema)
        }
        try:
            return standalone({**_shared(self._parameters), "properties": properties})
        except (SchemaFault, RecursionError):
            return None


def _types(schema: Schema) -> frozenset[str]:
    try:
        source = standalone(schema)
    except SchemaFault:
        return frozenset()
    return _some(types_of(source.schema, Lookup(source)))


def _some(types: frozenset[str]) -> frozenset[str]:
    return frozenset() if types >= TYPES - {"integer"} else types


@dataclass(frozen=True, slots=True)
class TagForm:
    """How a family writes an argument."""

    open: str
    """The text before a value, with ``{}`` in place of the name."""
    close: str
    """The text after a value."""
    closing: str
    """The text at which the parser ends a value, if one of ``following`` comes next."""
    framed: bool
    """Whether the parser takes line breaks on both sides of a value for a frame."""
    any_json: bool
    """Whether every value but a string is read as JSON; otherwise only a plain type is."""
    open_json: str | None = None
    """The text before a value that is not a string, if it differs from ``open``."""
    following: tuple[str, ...] = ()
    """What comes after a value, and white space. If it is empty, anything may."""


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
        opening = form.open
        if form.open_json is not None and one.schema.get("type") != "string":
            opening = form.open_json
        body = f"{text(opening.format(one.name))} {value}"
        bodies.append(body if one.required else f"({body})?")
    return " ".join(bodies)


def _tagged_value(
    rules: Rules, schema: Schema, form: TagForm, text: Callable[[str], str]
) -> str | None:
    kind = schema.get("type")
    if kind == "string":
        return text_value(rules, schema, form, text)
    if form.open_json is None and "string" in _types(schema):
        # It is read as text, whatever it looks like.
        return text_value(rules, {"type": "string"}, form, text) if _any_text(schema) else None
    close = text(form.close)
    if kind == "number" and is_bare(schema):
        return f"{rules.terminal(PLAIN_NUMBER)} {close}"
    if form.any_json or kind in ("integer", "number", "boolean", "object", "array"):
        untagged = _untagged(schema)
        if untagged is not None:
            return f"%json {json.dumps(guided(untagged))} {close}"
    return None


def _any_text(schema: Schema) -> bool:
    """Whether every string satisfies a schema."""
    kind = schema.get("type")
    if kind is not None:
        named = [kind] if isinstance(kind, str) else kind
        return "string" in named and is_bare(schema)
    options = schema.get("anyOf") or ()
    bare = schema.keys() - ANNOTATIONS - _DEFINITIONS == {"anyOf"}
    return bare and any(isinstance(one, dict) and _any_text(one) for one in options)


def _untagged(schema: Any) -> dict[str, Any] | None:
    """Return a schema whose strings contain no end tag, because that would end the value."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        return schema if "</" not in json.dumps(values) else None
    if "anyOf" in schema:
        options = [_untagged(one) for one in schema["anyOf"]]
        return None if None in options else {**schema, "anyOf": options}
    match schema.get("type"):
        case "integer" | "number" | "boolean" | "null":
            return schema
        case "string" if not {"pattern", "format"}.intersection(schema):
            return {**schema, "pattern": "^([^<]|<+[^</])*<*$"}
        case "array" if "prefixItems" not in schema:
            items = _untagged(schema.get("items"))
            return items and {**schema, "items": items}
        case "object" if schema.get("additionalProperties") is False:
            inner = members(schema)
            if inner is None or any("</" in one.name for one in inner):
                return None
            properties = {one.name: _untagged(one.schema) for one in inner}
            return None if None in properties.values() else {**schema, "properties": properties}
    return None


def text_value(
    rules: Rules, schema: Schema, form: TagForm, text: Callable[[str], str]
) -> str | None:
    """Return a string without quotes, and the text that closes it."""
    if not (_TEXT | _DEFINITIONS).issuperset(schema):
        return None
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        if not _sayable(choices, form) or "minLength" in schema or "maxLength" in schema:
            return None
        return f"{rules.terminal(' | '.join(map(quoted, choices)))} {text(form.close)}"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least and form.framed:
        return None
    end = escaped(form.closing)
    if form.following:
        end = rf"{end}[^<]*({'|'.join(map(escaped, form.following))})"
    content = rules.terminal(f"/(?s:.{{{least},{most}}})/ & ~/(?s:.*){end}(?s:.*)/")
    close = text(form.close)
    if not close.startswith('"'):
        # A special token, which is no text, ends it.
        return f"{content} {close}"
    # This is the text up to a special token in it, if there is one: no terminal can contain that.
    begins, special, rest = close.partition(" <[")
    if not special:
        return rules.rule(rules.terminal(f"{content} {close}"), "[lazy]")
    if least or most:
        return f"{rules.rule(rules.terminal(f'{content} {begins}'), '[lazy]')}{special}{rest}"
    # If the token does not follow, the text that looked like the end was no end.
    part = rules.rule(rules.terminal(f"/(?s:.*)/ {begins}"), "[lazy]")
    return f"{part}+{special}{rest}"


def _sayable(choices: Any, form: TagForm) -> bool:
    return isinstance(choices, list) and all(
        isinstance(one, str) and form.closing not in one and one == one.strip("\n") and one
        for one in choices
    )


def is_bare(schema: Schema) -> bool:
    """Return whether a schema restricts only the type."""
    return schema.keys() - ANNOTATIONS - _DEFINITIONS == {"type"}


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
