"""Splits a JSON schema into the part that llguidance enforces and the part that is checked later.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lmx.worker.engine import AnswerCheck
from lmx.worker.schemas.check import SchemaCheck
from lmx.worker.schemas.cost import too_costly
from lmx.worker.schemas.dialects import SchemaFault, standalone
from lmx.worker.schemas.rewrite import Takes, rewrite


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


def schema_forms(schema: Mapping[str, Any], takes: Takes) -> Iterator[SchemaForm]:
    """Yield the possible forms of a schema: first the one that enforces the most, then simpler
    ones.

    Raises :class:`SchemaFault` for a value that is no schema, would take too long, or can neither
    be enforced nor checked.
    """
    source = standalone(schema)
    if reason := too_costly(source.schema):
        raise SchemaFault("#", reason)
    made = rewrite(source, takes)
    candidates = [made]
    if made.expanded:
        candidates.append(rewrite(source, takes, expand=False))
    for made in candidates:
        if reason := too_costly(made.schema):
            if made is not candidates[-1]:
                continue
            raise SchemaFault("#", reason)
        try:
            check = SchemaCheck(source, made.checked, made.loose) if made.checked else None
        except ValueError as error:
            raise SchemaFault("#", str(error)) from error
        yield SchemaForm(made.schema, check, made.checked, made.remarks)
