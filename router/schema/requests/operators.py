"""What operators may send: bodies and queries of /admin and /engines, and the queries of GET
/v1/jobs and /v1/models.

The values of a query are strings, so numbers and booleans are read from them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmx.router.schema.validation import Count, Positive, Strict

_NAME_CHARS = 512
"""The most characters of a model's name. No existing name is nearly as long."""

_PATH_CHARS = 4096

ModelName = Annotated[str, Field(min_length=1, max_length=_NAME_CHARS)]


class LoadRequest(Strict):
    """The body of POST /admin/models/load."""

    model_id: ModelName
    """The id, an alias or the source of a model."""
    max_context_length: Positive | None = None
    """How many tokens its context may have. Default: as configured."""
    gpu_layers: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """It is accepted, and changes nothing: memory is unified."""
    wait: bool = True
    """Whether the answer comes when the model is ready. If not, it comes when the load has
    begun."""


class UnloadRequest(Strict):
    """The body of POST /admin/models/unload."""

    model_id: ModelName
    """The id, an alias or the source of a model."""
    wait: bool = True
    """Whether the answer comes when the memory is free. If not, it comes when the unload has
    begun."""


class ModelRequest(Strict):
    """The body of POST /admin/models/restart, /reset and /drain."""

    model: ModelName
    """The id, an alias or the source of a model."""


class PinRequest(ModelRequest):
    """The body of POST /admin/models/pin."""

    pinned: bool
    """Whether the model is never evicted from now on."""


class DrainRequest(Strict):
    """The body of POST /admin/drain."""

    drained: bool
    """Whether the machine's models take no requests from now on. Whoever means one model wants
    POST /admin/models/drain."""


class PlanQuery(Strict):
    """GET /admin/models/plan."""

    model: ModelName = Field(
        description="A model by its id, an alias or its source; a repository of the hub; or a "
        "short name of one, as `lmx pull` knows them."
    )
    context_length: Annotated[int, Field(ge=1, le=2**31 - 1, strict=False)] | None = Field(
        None, description="The context that the load would name. Default: as configured."
    )


class DownloadRequest(Strict):
    """A repository of the hub, or one file of it."""

    repo_id: ModelName
    """A repository of the hub: OWNER/NAME. With `bits` also a folder, or a .gguf file, of the
    machine that runs lmx."""
    filename: Annotated[str, Field(min_length=1, max_length=_PATH_CHARS)] | None = None
    """One file of it. Default: all that the model needs."""
    revision: ModelName | None = "main"
    """A branch, a tag or a commit. Default: main."""
    bits: Literal[4, 8, "mixed"] | None = None
    """Quantize it once it is here: to 4 bits, to 8, or to 4 and 6 (`mixed`). The result is served
    under a name of its own. Default: it is served as it is."""


class DeleteQuery(Strict):
    """The query of DELETE /admin/models/{id}."""

    force: Annotated[bool, Field(strict=False)] = False
    """The model is deleted also when it is loaded: it is unloaded first. Default: false."""


class EngineRequest(Strict):
    """The body of POST /engines."""

    engine_id: ModelName
    """The engine's id, which requests name as their model."""
    model_path: Annotated[str, Field(min_length=1, max_length=_PATH_CHARS)]
    """An MLX folder, a GGUF file, or a repository of the hub."""
    n_ctx: Annotated[int, Field(ge=128, le=2**31 - 1)] | None = 4096
    """How many tokens the engine's context may have. Left out, it is less where the model has
    less; null means as many as the model has."""
    load_immediately: bool = True
    """Whether the model is loaded before the answer comes. If not, its first request loads it."""
    n_gpu_layers: Count = 100
    """It is accepted and repeated, and changes nothing: memory is unified."""
    main_gpu_id: Count = 0
    """It is accepted and repeated, and changes nothing: there is one GPU."""


class JobsQuery(BaseModel):
    """Which jobs to list, the newest first. What a query holds is text: numbers are read from it,
    unlike in a body."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    state: (
        Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"] | None
    ) = Field(None, description="Jobs in this state alone.")
    model: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_CHARS,
        description="Jobs of this model alone: its id, alias or source.",
    )
    kind: Literal["chat", "completion"] | None = Field(None, description="Jobs of this kind alone.")
    limit: int = Field(20, ge=1, le=100, description="How many jobs there are on a page.")
    after: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_CHARS,
        description="The id of the last job of the page before.",
    )


class RequestsQuery(Strict):
    """GET /admin/requests."""

    ended: int = Field(
        0,
        ge=0,
        le=500,
        strict=False,
        description="How many of the last requests that have ended are listed too.",
    )


_FOLLOW = "Whether the stream continues with what comes, until the client leaves."


class LogsQuery(Strict):
    """GET /admin/logs."""

    lines: int = Field(
        100, ge=0, le=10_000, strict=False, description="How many of the last lines are sent first."
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
        description="How many of the last events are sent first, without Last-Event-ID.",
    )
    follow: bool = Field(True, strict=False, description=_FOLLOW)


class LiveQuery(Strict):
    """GET /admin/live."""

    logs: str | None = Field(
        None,
        description="The log whose lines come too: that of a model by its id or alias, `router`, "
        "`supervisor` or `fetch`.",
    )
    follow: bool = Field(True, strict=False, description=_FOLLOW)


class UsageQuery(Strict):
    """GET /admin/usage."""

    days: int = Field(
        30, ge=1, le=400, strict=False, description="How many days, with today as the last one."
    )
    by: Literal["day", "hour"] = Field(
        "day", description="Whether a row is of a day or of an hour. Hours are kept for 35 days."
    )


class OwnUsageQuery(Strict):
    """GET /v1/usage."""

    days: int = Field(
        7, ge=1, le=400, strict=False, description="How many days, with today as the last one."
    )


class PeerQuery(Strict):
    """GET /admin/peer."""

    known: str | None = Field(
        None,
        max_length=64,
        description="The `digest` of the answer before: what has the same one is left out.",
    )


class FiguresQuery(Strict):
    """GET /admin/usage/figures."""

    hours: int = Field(
        6, ge=1, le=192, strict=False, description="How many hours, with this one as the last one."
    )
    model: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_CHARS,
        description="The id of the model whose figures they are. Default: those of all models.",
    )


class ModelsQuery(Strict):
    """The query of GET /v1/models with the header `anthropic-version`; else it is ignored."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many models a page has at most. Default: all are on one page."""
    after_id: str | None = None
    """The id of the model after which the page begins: the `last_id` of the page before."""
    before_id: str | None = None
    """The id of the model before which the page ends: the `first_id` of the page after."""
