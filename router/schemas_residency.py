"""For how long a request asks its model to stay loaded, by Ollama's name and by LM Studio's."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.keep_alive import parse_keep_alive
from lmx.router.schema_types import Count, Strict


def _seconds(value: Any) -> Any:
    seconds = None if isinstance(value, bool) else parse_keep_alive(value)
    if isinstance(seconds, str) and seconds.isdecimal():
        seconds = float(seconds)
    if not isinstance(seconds, float) or not math.isfinite(seconds):
        given = repr(value[:40]) if isinstance(value, str) else type(value).__name__
        raise PydanticCustomError("keep_alive_form", "no duration", {"given": given})
    return seconds


class ResidencyFields(Strict):
    """``keep_alive``: a duration, negative or "forever" for ever. ``ttl``: whole seconds."""

    keep_alive: (
        Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": ["number", "string"]})]
        | None
    ) = None
    ttl: Count | None = None


def keep_alive_of(request: ResidencyFields) -> float | None:
    """Return the seconds that a model stays loaded after a request when no other comes: 0 not
    at all, negative for ever, None as it is configured.

    Raises :class:`RequestError` when the two names say different things.
    """
    wanted, ttl = request.keep_alive, request.ttl
    if wanted is not None and ttl is not None and wanted != ttl:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`keep_alive` ({wanted:g} s) and `ttl` ({ttl} s) differ: they are two names of one "
            "limit, send one of them.",
            param="ttl",
        )
    return ttl if wanted is None else wanted
