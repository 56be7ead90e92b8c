"""From a JSON schema to what llguidance enforces of it, and what is left to check. Pure."""

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
    """``schema``: what is enforced. ``check``: for an answer that is whole, None where the
    schema is enforced as it is. ``checked`` and ``remarks``: in words, with their places."""

    schema: dict[str, Any]
    check: AnswerCheck | None
    checked: tuple[str, ...]
    remarks: tuple[str, ...]


def schema_forms(schema: Mapping[str, Any], takes: Takes) -> Iterator[SchemaForm]:
    """Yield what may be enforced of a schema: first as much as can be, then less and simpler.

    Raises :class:`SchemaFault` for what is no schema, would take too long, or can neither be
    enforced nor checked.
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
            check = SchemaCheck(source, made.checked) if made.checked else None
        except ValueError as error:
            raise SchemaFault("#", str(error)) from error
        yield SchemaForm(made.schema, check, made.checked, made.remarks)
