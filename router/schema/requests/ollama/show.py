"""What Ollama's question about one model may hold."""

from __future__ import annotations

from typing import Any

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.schema.validation import Strict, validated


class OllamaModelName(Strict):
    """The name of a model."""

    model: str | None = None
    """The id, an alias or the source of a model, also with `:latest` at its end."""
    name: str | None = None
    """An older name of `model`."""


class OllamaShowRequest(OllamaModelName):
    """The body of POST /api/show."""

    verbose: bool | None = None
    """It is accepted, and changes nothing."""


def parse_ollama_show(body: dict[str, Any]) -> str:
    """Return the name of the model. Raises :class:`RequestError` (400) for the first fault."""
    return name_of(validated(OllamaShowRequest, body))


def name_of(request: OllamaModelName) -> str:
    """Return the name that a request gives. Raises :class:`RequestError` if it gives none."""
    name = request.model or request.name
    if not name:
        raise RequestError(
            ErrorCode.MISSING_PARAMETER, "`model` is required but missing.", param="model"
        )
    return name
