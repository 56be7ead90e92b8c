"""What the lists of models answer with."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer


class ModelObject(Answer):
    """A model as OpenAI shows it, with lmx's fields after the first four. ``state``: its worker's
    where it has one, else what becomes of it. ``context_length`` (tokens) and ``kind`` are null
    until they are known: of a source that was never fetched there are no files to read them from.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    state: str
    aliases: list[str]
    context_length: int | None
    modalities: list[str]
    kind: str | None
    capabilities: list[str]


class ModelList(Answer):
    """GET /v1/models: every model, loaded or not."""

    object: Literal["list"]
    data: list[ModelObject]


class CapabilityModelSpec(Answer):
    """One of GET /v1/chat/models, as kiapi has it. ``features``: what it takes and can do."""

    name: str
    family: str
    domain: Literal["chat"]
    aliases: list[str]
    default: bool
    features: list[str]
