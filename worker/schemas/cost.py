"""Which JSON schemas can be compiled in bounded time. Pure.

llguidance has limits of its own; these are for schemas that are slow within them. The figures are
from one core of a Linux server.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from lmx.worker.schemas.dialects import VALUES

# Rules that all name each other cost n^4: 1 s for a schema of this size.
MAX_SCHEMA_CHARS: Final = 65_536
# An intersection of n regular expressions costs 2^n: 0.2 s for 16, 3 s for 20.
MAX_INTERSECTIONS: Final = 16
# Each one is compared with every other: 3 s for 300.
_MAX_PATTERN_PROPERTIES: Final = 64
# A state for each remainder: 0.5 s for 100,000.
_MAX_REMAINDERS: Final = 100_000

_APPLICATORS: Final = ("$ref", "anyOf", "oneOf")
_NO_CONSTRAINTS: Final = frozenset(
    {*VALUES, "$defs", "definitions", "$schema", "$id", "type", "x-guidance", "allOf"}
)


def too_costly(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema, without its descriptions, would take too long; None if it doesn't.

    References are not resolved, so some harmless schemas are refused too: those with many patterns
    next to an ``allOf`` about something else.
    """
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        return f"the schema has more than {MAX_SCHEMA_CHARS} characters without descriptions"
    parts = list(_parts(schema))
    patterns = sum(
        isinstance(part.get(key), str) for part in parts for key in ("pattern", "format")
    )
    if patterns > MAX_INTERSECTIONS and any(map(_intersects, parts)):
        return f"it combines schemas that have more than {MAX_INTERSECTIONS} patterns"
    of_names = [part.get("patternProperties") for part in parts]
    if sum(len(one) for one in of_names if isinstance(one, dict)) > _MAX_PATTERN_PROPERTIES:
        return f"it has more than {_MAX_PATTERN_PROPERTIES} patternProperties"
    if sum(_remainders(part.get("multipleOf")) for part in parts) > _MAX_REMAINDERS:
        return f"its multipleOf are more than {_MAX_REMAINDERS} together"
    return None


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a schema that may be a schema."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    elif isinstance(schema, dict):
        yield schema
        # This looks at values too, because a property may be called "const".
        for value in schema.values():
            yield from _parts(value)


def _intersects(part: Mapping[str, Any]) -> bool:
    """Return whether a schema is the intersection of two or more."""
    every = part.get("allOf")
    combined = len(every) if isinstance(every, list) else 0
    combined += sum(key in part for key in _APPLICATORS)
    own = part.keys() - _NO_CONSTRAINTS - set(_APPLICATORS)
    return combined + bool(own) > 1 and combined > 0


def _remainders(multiple: Any) -> int:
    """Return how many remainders there are of the number as a whole one: 0.25 becomes 25."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float):
        return 0
    _, digits, exponent = Decimal(str(multiple)).normalize().as_tuple()
    if not isinstance(exponent, int) or len(digits) + exponent > len(str(_MAX_REMAINDERS)):
        return _MAX_REMAINDERS + 1
    scaled: int = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return scaled
