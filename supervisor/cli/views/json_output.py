"""JSON for programs that read what a command prints: always valid, whatever the values are."""

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON. Numbers that JSON does not have (NaN, Infinity) become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        from lmx.protocol.wire import codec  # rarely needed, and commands start sooner without

        return json.dumps(_finite(codec.plain(value)), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return value
