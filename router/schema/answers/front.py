"""The answers of the routes that programs ask first, to see what server this is."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer


class Version(Answer):
    """The answer of GET /version, by vLLM's and Ollama's name."""

    version: str


class Front(Version):
    """The answer of GET / for programs. Browsers get a page."""

    name: Literal["lmx"]
    status: Literal["healthy", "degraded", "unhealthy"]
    """The same as in GET /health."""
    reason: str | None
    """Why it is not healthy. Null if it is."""
    models: list[str]
    """The names of the models. Empty where a key is needed to list them."""
    api: str
    """Where OpenAI's API is."""
    docs: str
    """Where the API is described."""
