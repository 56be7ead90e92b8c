"""Turns the opposite of a schema into a schema without ``not``, if there is one. Pure."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lmx.worker.schemas.dialects import Schema
from lmx.worker.schemas.disjoint import (
    Lookup,
    equal_text,
    property_of,
    type_of,
    types_of,
    values_of,
)

_MAX_DEPTH: Final = 6
_MAX_VALUES: Final = 64
# Keywords whose value `true` forbids nothing.
_FREE: Final = ("additionalProperties", "items", "propertyNames")
_TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
# The keyword for the opposite, the type that it is about, and what is added to its limit.
_NEGATIONS: Final = {
    "minimum": ("exclusiveMaximum", "number", 0),
    "maximum": ("exclusiveMinimum", "number", 0),
    "exclusiveMinimum": ("maximum", "number", 0),
    "exclusiveMaximum": ("minimum", "number", 0),
    "minLength": ("maxLength", "string", -1),
    "maxLength": ("minLength", "string", 1),
    "minItems": ("maxItems", "array", -1),
    "maxItems": ("minItems", "array", 1),
}


def negated(schema: Schema, around: Schema, look: Lookup, depth: int = 0) -> Schema | None:
    """Return a schema for the values that don't satisfy ``schema``; None if that can't be
    expressed.

    ``around`` is satisfied in any case. This makes the opposite of a value known if only a few
    values are possible.
    """
    if isinstance(schema, bool):
        return not schema
    if depth > _MAX_DEPTH or not look.spend():
        return None
    around = _resolved(around, look)
    parts: list[Schema] = []
    for key, value in schema.items():
        made = _negated_keyword(key, value, schema, around, look, depth + 1)
        if made is None:
            return None
        parts += made
    return any_of(parts)


def any_of(options: Iterable[Schema]) -> Schema:
    """Return a schema for the values that satisfy any of ``options``."""
    kept = [one for one in options if one is not False]
    if not kept:
        return False
    if any(one is True or one == {} for one in kept):
        return True
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def all_of(parts: Iterable[Schema]) -> Schema:
    """Return a schema for the values that satisfy all of ``parts``."""
    kept = [one for one in parts if one is not True and one != {}]
    if any(one is False for one in kept):
        return False
    if not kept:
        return True
    return kept[0] if len(kept) == 1 else {"allOf": kept}


def without(name: str) -> Schema:
    """Return a schema for objects without a property, and for all values that are no objects."""
    return {"properties": {name: False}}


def _negated_keyword(
    key: str, value: Any, schema: dict[str, Any], around: Schema, look: Lookup, depth: int
) -> list[Schema] | None:
    """Return schemas for the values that don't satisfy one keyword; None if that can't be
    expressed."""
    match key:
        case "type":
            types = value if isinstance(value, list) else [value]
            if {"integer", "number"} & set(types) == {"integer"} and (
                "number" in types_of(around, look)
            ):
                # There is no schema for numbers that are no integers.
                return None
            return [_other_types(types)]
        case "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        case "const" | "enum":
            made = _other_values(values_of({key: value}) or (), around)
        case "properties":
            return _other_properties(value, around, look, depth)
        case "$ref":
            made = negated(look.resolve(value), around, look, depth)
        case "not":
            made = value
        case "anyOf" | "allOf":
            several = [negated(one, around, look, depth) for one in value]
            if None in several:
                return None
            known = [one for one in several if one is not None]
            made = all_of(known) if key == "anyOf" else any_of(known)
        case _ if key in _NEGATIONS:
            other, type_, added = _NEGATIONS[key]
            limit = value + added
            # Nothing is shorter than nothing.
            made = {"type": type_, other: limit} if type_ == "number" or limit >= 0 else False
        case _:
            return [] if key == "$defs" or (value is True and key in _FREE) else None
    return None if made is None else [made]


def _other_types(types: Sequence[str]) -> Schema:
    left = [
        one for one in _TYPES if one not in types and not (one == "number" and "integer" in types)
    ]
    return {"type": left} if left else False


def _other_properties(
    properties: dict[str, Schema], around: Schema, look: Lookup, depth: int
) -> list[Schema] | None:
    parts: list[Schema] = []
    for name, one in properties.items():
        known = property_of(around, name) if isinstance(around, dict) else True
        made = negated(one, known, look, depth)
        if made is None:
            return None
        if made is not False:
            parts.append({"type": "object", "properties": {name: made}, "required": [name]})
    return parts


def _other_values(excluded: Sequence[Any], around: Schema) -> Schema | None:
    """Return a schema for all values except some; None if that can't be expressed."""
    possible = values_of(around)
    if possible is not None:
        texts = {equal_text(one) for one in excluded}
        left = [one for one in possible if equal_text(one) not in texts]
        return {"enum": left} if left else False
    if any(isinstance(one, list | dict) for one in excluded) or len(excluded) > _MAX_VALUES:
        return None
    parts: list[Schema] = []
    for type_ in _TYPES:
        its = [one for one in excluded if type_of(one) == type_]
        if not its:
            parts.append({"type": type_})
        elif type_ == "boolean":
            left = [one for one in (False, True) if one not in its]
            parts += [{"enum": left}] if left else []
        elif type_ == "string":
            parts.append({"type": "string", "pattern": f"^(?:{_unlike(its)})$"})
        elif type_ == "number":
            parts += _other_numbers(sorted(set(its)))
    return any_of(parts)


def _other_numbers(excluded: Sequence[float]) -> list[Schema]:
    between: list[Schema] = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in itertools.pairwise(excluded)
    ]
    return [
        {"type": "number", "exclusiveMaximum": excluded[0]},
        *between,
        {"type": "number", "exclusiveMinimum": excluded[-1]},
    ]


def _unlike(texts: Sequence[str]) -> str:
    """Return a regular expression for every text except these."""
    heads: dict[str, list[str]] = {}
    for text in texts:
        if text:
            heads.setdefault(text[0], []).append(text[1:])
    others = "".join(map(re.escape, heads))
    parts = [f"[^{others}]{_ANY}" if heads else f"{_ONE}{_ANY}"]
    parts += [f"{re.escape(head)}(?:{_unlike(tails)})" for head, tails in heads.items()]
    if "" not in texts:
        parts.append("")
    return "|".join(parts)


_ONE: Final = r"[\s\S]"
_ANY: Final = r"[\s\S]*"


def _resolved(schema: Schema, look: Lookup) -> Schema:
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = look.resolve(schema["$ref"])
    return schema
