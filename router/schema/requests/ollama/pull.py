"""What Ollama's request for a model to be fetched may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.router.schema.requests.ollama.show import OllamaModelName, name_of
from lmx.router.schema.validation import validated


class OllamaPullRequest(OllamaModelName):
    """The body of POST /api/pull."""

    stream: bool | None = None
    """The answer comes as lines of JSON. Default: true."""
    insecure: bool | None = None
    """It is accepted, and changes nothing."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A checked request."""

    name: str
    """The model."""
    streams: bool
    """Whether the answer comes as lines of JSON."""


def parse_ollama_pull(body: dict[str, Any]) -> Pull:
    """Return the checked request. Raises :class:`RequestError` (400) for the first fault."""
    request = validated(OllamaPullRequest, body)
    return Pull(name_of(request), request.stream is not False)
