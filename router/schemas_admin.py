"""What operators may send: bodies and queries of /admin and /engines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lmx.router.schema_types import Count, Positive, Strict

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
