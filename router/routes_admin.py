"""The routes of Opta-LMX's administration and of Kolosal's engines; part of the table in
:mod:`lmx.router.routes`."""

from __future__ import annotations

from collections.abc import Iterator

from lmx.protocol.errors import ErrorCode
from lmx.router.admin_config import reload_config
from lmx.router.admin_downloads import (
    DOWNLOAD_ERRORS,
    available_models,
    cancel_download,
    get_download,
    list_downloads,
    start_download,
)
from lmx.router.admin_models import delete_model, load_model, unload_model
from lmx.router.admin_status import admin_health, admin_memory, admin_models, admin_status
from lmx.router.answer_admin import (
    DeleteAnswer,
    HealthAnswer,
    LoadAnswer,
    MemoryAnswer,
    ModelsAnswer,
    ReloadAnswer,
    StatusAnswer,
    UnloadAnswer,
)
from lmx.router.answer_downloads import (
    AvailableAnswer,
    DownloadAnswer,
    DownloadProgress,
    DownloadsAnswer,
)
from lmx.router.answer_engines import (
    EngineAnswer,
    EngineRemoved,
    EnginesAnswer,
    EngineStatusAnswer,
)
from lmx.router.download_progress import download_progress
from lmx.router.endpoint import Access, Endpoint
from lmx.router.engines import add_engine, engine_status, list_engines, remove_engine
from lmx.router.model_loading import LOAD_ERRORS
from lmx.router.schemas_admin import (
    DeleteQuery,
    DownloadRequest,
    EngineRequest,
    LoadRequest,
    UnloadRequest,
)


def administration() -> Iterator[Endpoint]:
    """Return the routes of /admin that are Opta-LMX's, but for the metrics."""
    use, tag = Access.ADMIN, "Administration"
    yield Endpoint(
        "GET", "/admin/health", admin_health, Access.OPEN, "Health", "Whether all is well",
        answer=HealthAnswer, unwell=503, quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/admin/status", admin_status, use, tag, "Show how lmx is", answer=StatusAnswer
    )
    yield Endpoint(
        "GET", "/admin/memory", admin_memory, use, tag, "Show who has the memory",
        answer=MemoryAnswer,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/config/reload", reload_config, use, tag, "Read the configuration again",
        answer=ReloadAnswer, errors=(ErrorCode.CONFIG_INVALID,),
    )  # fmt: skip
    yield Endpoint(
        "GET", "/admin/models", admin_models, use, tag, "Show all models, loaded or not",
        answer=ModelsAnswer,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/models/load", load_model, use, tag, "Load a model, and wait",
        request=LoadRequest, answer=LoadAnswer, errors=LOAD_ERRORS,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/models/unload", unload_model, use, tag, "Unload a model, and wait",
        request=UnloadRequest, answer=UnloadAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_LOADED),
    )  # fmt: skip
    yield from _files()


def _files() -> Iterator[Endpoint]:
    use, tag, path = Access.ADMIN, "Downloads", "/admin/models/download"
    yield Endpoint(
        "GET", "/admin/models/available", available_models, use, tag,
        "List the models on this machine's disk", answer=list[AvailableAnswer],
    )  # fmt: skip
    yield Endpoint(
        "POST", path, start_download, use, tag, "Download a model from the hub",
        request=DownloadRequest, answer=DownloadAnswer, errors=DOWNLOAD_ERRORS,
    )  # fmt: skip
    yield Endpoint(
        "GET", path, list_downloads, use, tag, "List the downloads", answer=DownloadsAnswer
    )
    yield Endpoint(
        "GET", f"{path}/{{download_id}}", get_download, use, tag, "Show a download",
        answer=DownloadAnswer,
    )  # fmt: skip
    # Quiet: whoever follows must hold up no router's end.
    yield Endpoint(
        "GET", f"{path}/{{download_id}}/progress", download_progress, use, tag,
        "Follow a download", streams=True, event=DownloadProgress, quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "DELETE", f"{path}/{{download_id}}", cancel_download, use, tag, "Cancel a download",
        answer=DownloadAnswer,
    )  # fmt: skip
    # After the one above, which it would swallow.
    yield Endpoint(
        "DELETE", "/admin/models/{id:.+}", delete_model, use, tag, "Delete a model's files",
        query=DeleteQuery, answer=DeleteAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_LOADED, ErrorCode.NOT_DELETABLE),
    )  # fmt: skip


def engines() -> Iterator[Endpoint]:
    """Return Kolosal's routes about engines."""
    use, tag = Access.ADMIN, "Engines"
    missing = (ErrorCode.MODEL_NOT_FOUND,)
    yield Endpoint(
        "GET", "/engines", list_engines, use, tag, "List the engines", answer=EnginesAnswer
    )
    yield Endpoint(
        "POST", "/engines", add_engine, use, tag, "Add a model, and load it",
        request=EngineRequest, answer=EngineAnswer, status=201,
        errors=(ErrorCode.MODEL_EXISTS, *LOAD_ERRORS),
    )  # fmt: skip
    yield Endpoint(
        "GET", "/engines/{id:.+}/status", engine_status, use, tag, "Show an engine",
        answer=EngineStatusAnswer, errors=missing,
    )  # fmt: skip
    yield Endpoint(
        "DELETE", "/engines/{id:.+}", remove_engine, use, tag, "Remove an engine that was added",
        answer=EngineRemoved, errors=(*missing, ErrorCode.MODEL_CONFIGURED),
    )  # fmt: skip
