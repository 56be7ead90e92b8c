"""The answers of Ollama's API. Times and durations are nanoseconds, sizes bytes."""

from __future__ import annotations

from typing import Any, Literal

from lmx.router.http.responses import Answer


class OllamaDetails(Answer):
    """What is known of a model's files."""

    parent_model: str
    """The model that an adapter belongs to; else empty."""
    format: Literal["mlx"]
    family: str
    """The name of its architecture; empty until its files are known."""
    families: list[str]
    parameter_size: str
    """It is not counted, and always empty."""
    quantization_level: str
    """It is not told, and always empty."""


Capability = Literal["completion", "tools", "thinking", "vision", "audio", "embedding"]


class OllamaModel(Answer):
    """A model in a list."""

    name: str
    """Its id, with a tag."""
    model: str
    """The same."""
    modified_at: str
    """When its files were made."""
    size: int
    """How much its files take on the disk; 0 until they are known."""
    digest: str
    """It tells the model from others; it is not made of the files."""
    details: OllamaDetails
    context_length: int
    """In tokens; 0 where it is not known."""
    capabilities: list[Capability]
    """What it can, as POST /api/show says it."""


class OllamaModels(Answer):
    """The answer of GET /api/tags: every model."""

    models: list[OllamaModel]


class OllamaLoadedModel(Answer):
    """A model that is loaded."""

    name: str
    model: str
    size: int
    """The memory that it takes."""
    size_vram: int
    """The same: memory is unified."""
    digest: str
    details: OllamaDetails
    context_length: int
    """In tokens; 0 where it is not known."""
    expires_at: str | None = None
    """When it is unloaded if no request comes: in 2286 if it stays loaded. While it has a request,
    that is not known."""


class OllamaLoadedModels(Answer):
    """The answer of GET /api/ps: every loaded model."""

    models: list[OllamaLoadedModel]


class OllamaModelDetails(Answer):
    """The answer of POST /api/show."""

    modelfile: str
    """A comment: there is no such file."""
    parameters: str
    template: str
    license: str
    """All three are empty: they stand in the model's own files."""
    details: OllamaDetails
    model_info: dict[str, Any]
    """The architecture, and its `context_length`."""
    capabilities: list[Capability]
    """What it can. Of a chat model that was never loaded, `tools` is taken for granted, and
    `thinking` is not known yet."""
    modified_at: str


class OllamaProgressLine(Answer):
    """The answer of POST /api/pull, and the only line of its stream."""

    status: Literal["success"]
    """The model is there."""
