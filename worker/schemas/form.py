"""Splits a JSON schema into what llguidance enforces and what is checked later. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmx.worker.engine.values import AnswerCheck
from lmx.worker.schemas.check import SchemaCheck
from lmx.worker.schemas.cost import too_costly
from lmx.worker.schemas.dialects import ROOT, Schema, SchemaFault, Standalone, in_place, standalone
from lmx.worker.schemas.rewrite import Accepts, rewrite

_MAX_TRIES: Final = 64
_INNER: Final = (
    "additionalProperties",
    "items",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)


@dataclass(frozen=True, slots=True)
class SchemaForm:
    """A schema in the form in which it is enforced."""

    schema: dict[str, Any]
    """The part that is enforced."""
    check: AnswerCheck | None
    """Checks a complete answer. None if the schema is enforced exactly."""
    checked: tuple[str, ...]
    """The parts that are checked, in words, with their places."""
    remarks: tuple[str, ...]
    """What is enforced differently, in words, with the places."""


def schema_forms(schema: Mapping[str, Any], accepts: Accepts) -> Iterator[SchemaForm]:
    """Yield the possible forms of a schema: first the one that enforces the most, then simpler
    ones.

    Raises :class:`SchemaFault` for a value that is no schema, would take too long, or can neither
    be enforced nor checked.
    """
    source = standalone(schema)
    if reason := too_costly(source.schema):
        raise SchemaFault("#", reason)
    made = rewrite(source, accepts)
    candidates = [made]
    if made.expanded:
        candidates.append(rewrite(source, accepts, expand=False))
    for made in candidates:
        if reason := too_costly(made.schema):
            if made is not candidates[-1]:
                continue
            raise SchemaFault("#", reason)
        check = SchemaCheck(source, made.checked, made.loose) if made.checked else None
        yield SchemaForm(made.schema, check, made.checked, made.remarks)


def refused_place(schema: Mapping[str, Any], accepts: Accepts) -> str:
    """Return the place of the innermost part of a schema that llguidance refuses by itself, as far
    as a few tries find it. llguidance refuses the whole schema."""
    source = standalone(schema)
    definitions = source.schema.get("$defs", {})
    node: dict[str, Any] = source.schema
    tried = {id(node)}
    while len(tried) <= _MAX_TRIES:
        for part in _inner(node, source):
            if not isinstance(part, dict) or id(part) in tried:
                continue
            tried.add(id(part))
            alone = Standalone({**part, "$defs": definitions}, source.places)
            if not accepts(rewrite(alone, accepts).schema):
                node = part
                break
        else:
            break
    return source.places.get(id(node), ROOT)


def _inner(node: dict[str, Any], source: Standalone) -> Iterator[Schema]:
    """Yield the schemas that a schema consists of, or refers to."""
    yield from in_place(node)
    yield from node.get("prefixItems", ())
    for key in ("properties", "patternProperties"):
        yield from node.get(key, {}).values()
    for key in _INNER:
        if key in node:
            yield node[key]
    if "$ref" in node:
        yield source.resolve(node["$ref"])
