"""The arguments of a call as an object, for APIs that do not give them as text. Pure."""

from __future__ import annotations

from typing import Any

import jiter


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments; of an answer that was cut off, as much as is there."""
    try:
        value = jiter.from_json(arguments.encode(), partial_mode=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
