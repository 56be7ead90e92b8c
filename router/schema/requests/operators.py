"""What operators may send: bodies and queries of /admin and /engines.

What the query of GET /v1/jobs may ask for.

Queries of lmx's own routes for operators. Their values are strings, so numbers and booleans
are read from these.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmx.router.schema.validation import Count, Positive, Strict

_NAME_CHARS = 512
_PATH_CHARS = 4096

ModelName = Annotated[str, Field(min_length=1, max_length=_NAME_CHARS)]


class LoadRequest(Strict):
    """``max_context_length``: tokens; null as it is configured. ``gpu_layers`` has no effect."""

    model_id: ModelName
    max_context_length: Positive | None = None
    gpu_layers: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None


class UnloadRequest(Strict):
    """Which model."""

    model_id: ModelName


class DownloadRequest(Strict):
    """A repository of the hub, or one file of it; ``revision``: a branch, a tag or a commit, null
    for ``main``."""

    repo_id: ModelName
    filename: Annotated[str, Field(min_length=1, max_length=_PATH_CHARS)] | None = None
    revision: ModelName | None = "main"


class DeleteQuery(Strict):
    """``force``: also when it is loaded; it is unloaded first."""

    force: Annotated[bool, Field(strict=False)] = False


class EngineRequest(Strict):
    """``model_path``: an MLX folder, a GGUF file, or a repository of the hub. ``n_ctx``: tokens;
    left out it may be less, where the model has less. ``n_gpu_layers`` and ``main_gpu_id`` have
    no effect."""

    engine_id: ModelName
    model_path: Annotated[str, Field(min_length=1, max_length=_PATH_CHARS)]
    n_ctx: Annotated[int, Field(ge=128, le=2**31 - 1)] = 4096
    n_gpu_layers: Count = 100
    main_gpu_id: Count = 0


_NAME_LIMIT = 512
"""Characters of a model's name, far beyond any that there is."""


class JobsQuery(BaseModel):
    """Which jobs to list, the newest first. What a query holds is text: numbers are read from it,
    unlike in a body."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: (
        Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"] | None
    ) = Field(None, description="Jobs in this state alone.")
    model: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_LIMIT,
        description="Jobs of this model alone: its id, alias or source.",
    )
    kind: Literal["chat", "completion"] | None = Field(None, description="Jobs of this kind alone.")
    limit: int = Field(20, ge=1, le=100, description="How many jobs there are on a page.")
    after: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_LIMIT,
        description="The id of the last job of the page before.",
    )


_FOLLOW = "Whether the stream goes on with what comes, until the client leaves."


class LogsQuery(Strict):
    """GET /admin/logs."""

    lines: int = Field(
        100, ge=0, le=10_000, strict=False, description="So many lines that there are come first."
    )
    follow: bool = Field(True, strict=False, description=_FOLLOW)


class EventsQuery(Strict):
    """GET /admin/events."""

    model: str | None = Field(
        None, description="Events of this model alone: its id, alias or source."
    )
    name: str | None = Field(
        None,
        description="Events of this name alone, and of all below it: `worker` has `worker.ready`.",
    )
    last: int = Field(
        50,
        ge=0,
        le=2000,
        strict=False,
        description="So many events that there are come first, unless Last-Event-ID says which.",
    )
    follow: bool = Field(True, strict=False, description=_FOLLOW)
