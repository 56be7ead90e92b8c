"""Whether no value can satisfy two schemas at once, as far as that is easy to see. Pure."""

import itertools
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from lmx.worker.schemas.dialects import IN_PLACE, TYPES, Schema, Standalone

_MAX_STEPS: Final = 20_000


class Lookup:
    """The targets of references, and a limit for the whole search: about 0.1 s."""

    def __init__(self, source: Standalone) -> None:
        self.resolve = source.resolve
        self._left = _MAX_STEPS

    def spend(self) -> bool:
        """Count one step; return whether there was one left."""
        self._left -= 1
        return self._left >= 0


_MAX_DEPTH: Final = 6
_SINGLE: Final = frozenset(TYPES - {"integer"})


def disjoint(
    one: Schema, other: Schema, look: Lookup, around: Schema = True, depth: int = 0
) -> bool:
    """Return whether the schemas provably have no value in common that also satisfies ``around``.
    False does not prove the opposite."""
    if one is False or other is False:
        return True
    if one is True or other is True or depth > _MAX_DEPTH or not look.spend():
        return False
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    deeper = depth + 1
    for this, that in ((one, other), (other, one)):
        if "$ref" in this and disjoint(look.resolve(this["$ref"]), that, look, around, deeper):
            return True
        for key in IN_PLACE:
            proofs = (disjoint(part, that, look, around, deeper) for part in this.get(key, ()))
            if key in this and (any(proofs) if key == "allOf" else all(proofs)):
                return True
    types = types_of(one, look) & types_of(other, look) & types_of(around, look)
    if not types:
        return True
    first, second = values_of(one), values_of(other)
    if first is not None and second is not None:
        texts = {equal_text(value) for value in first}
        return not any(equal_text(value) in texts for value in second)
    if types <= {"number"}:
        return _lower_bound(one) > _upper_bound(other) or _lower_bound(other) > _upper_bound(one)
    if types <= {"object"}:
        names = {*one.get("required", ()), *other.get("required", ())}
        return any(
            disjoint(property_of(one, name), property_of(other, name), look, True, deeper)
            for name in names
        )
    return False


def overlaps(
    options: Sequence[Schema], look: Lookup, around: Schema, most: int
) -> dict[int, list[int]] | None:
    """Return which of the schemas may have a value in common: for each that may, the numbers of the
    others. None if more than ``most`` may, or if the search has no step left."""
    listed = [values_of(one) for one in options]
    # Values that are listed are looked up: constants of which there are thousands are usual.
    by_value: dict[str, list[int]] = {}
    for at, values in enumerate(listed):
        for text in {equal_text(value) for value in values or ()}:
            by_value.setdefault(text, []).append(at)
    unlisted = [at for at, values in enumerate(listed) if values is None]
    pairs = itertools.chain(
        (pair for ats in by_value.values() for pair in itertools.combinations(ats, 2)),
        itertools.combinations(unlisted, 2),
        (
            (at, other)
            for at in unlisted
            for other, values in enumerate(listed)
            if values is not None
        ),
    )
    found: dict[int, list[int]] = {}
    left = most
    seen: set[tuple[int, int]] = set()
    for pair in pairs:
        if not look.spend():
            return None
        if pair in seen:
            continue
        seen.add(pair)
        one, other = pair
        if not disjoint(options[one], options[other], look, around):
            left -= 2
            if left < 0:
                return None
            found.setdefault(one, []).append(other)
            found.setdefault(other, []).append(one)
    return found


def types_of(schema: Schema, look: Lookup, depth: int = 0) -> frozenset[str]:
    """Return the types that a schema's values may have; "number" stands for integers too. These
    may be too many where the search has no step left."""
    if isinstance(schema, bool):
        return _SINGLE if schema else frozenset()
    values = values_of(schema)
    if values is not None:
        return frozenset(type_of(value) for value in values)
    named = schema.get("type")
    types = _SINGLE
    if named is not None:
        listed = named if isinstance(named, list) else [named]
        types = frozenset("number" if one == "integer" else one for one in listed)
    if depth == _MAX_DEPTH or (depth and not look.spend()):
        return types
    if "$ref" in schema:
        types &= types_of(look.resolve(schema["$ref"]), look, depth + 1)
    for key in IN_PLACE:
        parts = [types_of(part, look, depth + 1) for part in schema.get(key, ())]
        if parts:
            types &= frozenset.intersection(*parts) if key == "allOf" else frozenset.union(*parts)
    return types


def type_of(value: Any) -> str:
    """Return the type of a value that is written as JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float() | Decimal():
            return "number"
        case str():
            return "string"
        case list() | tuple():  # Python's literals have both.
            return "array"
    return "object"


def values_of(schema: Schema) -> Sequence[Any] | None:
    """Return the only values that a schema can have; None if it doesn't list them."""
    if isinstance(schema, dict):
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            listed: Sequence[Any] = schema["enum"]
            return listed
    return None


def property_of(schema: dict[str, Any], name: str) -> Schema:
    """Return what a schema itself requires of a property; True if that is not clear."""
    properties: dict[str, Schema] = schema.get("properties", {})
    if name in properties:
        return properties[name]
    rest: Schema = schema.get("additionalProperties", True)
    return True if "patternProperties" in schema else rest


def equal_text(value: Any) -> str:
    """Return a text that is the same for values that are equal: 1 equals 1.0, but not true."""
    return json.dumps(_normalized(value), sort_keys=True)


def _normalized(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, list):
        return [_normalized(one) for one in value]
    if isinstance(value, dict):
        return {key: _normalized(one) for key, one in value.items()}
    return value


def _lower_bound(schema: dict[str, Any]) -> float:
    least: float = schema.get("minimum", -math.inf)
    exclusive = schema.get("exclusiveMinimum", -math.inf)
    # Just above: two schemas that meet in a limit that one of them excludes are disjoint.
    return max(least, math.nextafter(exclusive, math.inf))


def _upper_bound(schema: dict[str, Any]) -> float:
    most: float = schema.get("maximum", math.inf)
    exclusive = schema.get("exclusiveMaximum", math.inf)
    return min(most, math.nextafter(exclusive, -math.inf))
