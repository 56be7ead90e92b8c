"""The routes about downloads: begin, list, look at, cancel, and what is on this machine's disk.

A download's progress as a stream is :mod:`lmx.router.download_progress`'s.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.inventory import (
    Available,
    AvailableModel,
    CancelDownload,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    StartDownload,
)
from lmx.protocol.states import DownloadStatus
from lmx.router.answer_downloads import (
    AvailableAnswer,
    DownloadAnswer,
    DownloadsAnswer,
    DownloadState,
)
from lmx.router.answer_error import ErrorObject
from lmx.router.body import read_object
from lmx.router.errors import error_body, rejection
from lmx.router.invalid import validated
from lmx.router.json_answer import json_answer, json_array
from lmx.router.operating import COMMAND_DEADLINE_S, ask, params_named
from lmx.router.schemas_admin import DownloadRequest
from lmx.router.services import SERVICES, Services

DOWNLOAD_ERRORS: Final = (
    ErrorCode.NOT_FOUND,
    ErrorCode.DOWNLOAD_FAILED,
    ErrorCode.INSUFFICIENT_DISK,
    ErrorCode.QUEUE_FULL,
)
"""What a download can be refused with beside what every route can."""

_START_DEADLINE_S: Final = 60.0
"""The hub is asked for the size first."""

_SCAN_DEADLINE_S: Final = 60.0
"""A cache of thousands of files, on a disk that was asleep."""

_DEFAULT_REVISION: Final = "main"

_STATES: Final[dict[DownloadStatus, DownloadState]] = {
    DownloadStatus.STARTING: "downloading",
    DownloadStatus.DOWNLOADING: "downloading",
    DownloadStatus.COMPLETED: "completed",
    DownloadStatus.FAILED: "failed",
    DownloadStatus.CANCELLED: "cancelled",
    DownloadStatus.INTERRUPTED: "interrupted",
}

_FIELDS: Final = {"source": "repo_id"}


async def start_download(request: web.Request) -> web.Response:
    """Begin a download, or return the one that runs for the same. It goes on by itself.

    One that fails at once is an error: 404 where the hub has no such repository, revision or
    file, does not let lmx see it, or has nothing in it that lmx can load.
    """
    services = request.app[SERVICES]
    wanted = validated(DownloadRequest, await read_object(request, services.spec.body_limit_bytes))
    revision = None if wanted.revision == _DEFAULT_REVISION else wanted.revision
    question = StartDownload(wanted.repo_id, revision, wanted.filename)
    with params_named(_FIELDS):
        view = await ask(services.supervisor, question, DownloadView, _START_DEADLINE_S)
    if view.status is DownloadStatus.FAILED:
        raise _failure(view)
    return json_answer(download_answer(view))


async def list_downloads(request: web.Request) -> web.Response:
    """Return the downloads that are known, the latest first."""
    supervisor = request.app[SERVICES].supervisor
    found = await ask(supervisor, GetDownloads(), Downloads, COMMAND_DEADLINE_S)
    answers = [download_answer(view) for view in found.downloads]
    return json_answer(DownloadsAnswer(downloads=answers, count=len(answers)))


async def get_download(request: web.Request) -> web.Response:
    """Return one download."""
    view = await find_download(request.app[SERVICES], request.match_info["download_id"])
    return json_answer(download_answer(view))


async def cancel_download(request: web.Request) -> web.Response:
    """End a download. What has come stays, for when it is asked for again."""
    supervisor = request.app[SERVICES].supervisor
    question = CancelDownload(request.match_info["download_id"])
    view = await ask(supervisor, question, DownloadView, COMMAND_DEADLINE_S)
    return json_answer(download_answer(view))


async def available_models(request: web.Request) -> web.Response:
    """Return the models that are on this machine's disk, whole, served or not."""
    found = await ask(request.app[SERVICES].supervisor, GetAvailable(), Available, _SCAN_DEADLINE_S)
    return json_array(available_answer(model) for model in found.models)


async def find_download(services: Services, download_id: str) -> DownloadView:
    """Return a download as it is now. Raises NOT_FOUND where there is none."""
    found = await ask(services.supervisor, GetDownloads(download_id), Downloads, COMMAND_DEADLINE_S)
    return found.downloads[0]


def download_answer(view: DownloadView) -> DownloadAnswer:
    """Return a download in the form of its routes."""
    return DownloadAnswer(
        download_id=view.download_id,
        repo_id=view.repo_id,
        revision=view.revision or _DEFAULT_REVISION,
        filename=view.filename,
        estimated_size_bytes=view.total_bytes,
        status=_STATES[view.status],
        progress_percent=percent_done(view),
        downloaded_bytes=view.downloaded_bytes,
        speed_mbps=megabits(view.speed_bytes_per_s),
        started_at=view.started_s,
        ended_at=view.ended_s,
        model_id=view.model_id,
        error=fault(view),
    )


def percent_done(view: DownloadView) -> float | int:
    """Return how much of a download has come: 100 when it is completed, and not before."""
    if view.status is DownloadStatus.COMPLETED:
        return 100
    if not view.total_bytes:
        return 0.0
    return min(round(100 * view.downloaded_bytes / view.total_bytes, 1), 99.9)


def megabits(speed_bytes_per_s: float) -> float:
    """Return a speed in Mbit/s: 10^6 bits, as network speeds are given."""
    return round(8 * speed_bytes_per_s / 1e6, 1)


def fault(view: DownloadView) -> ErrorObject | None:
    """Return why a download has no good end; None while it runs, and for a good one."""
    if view.error_code is None:
        return None
    return ErrorObject(**error_body(_failure(view), operator=True)["error"])


def available_answer(model: AvailableModel) -> AvailableAnswer:
    """Return a model on disk in the form of its route."""
    downloaded = datetime.fromtimestamp(model.downloaded_at_s, UTC).replace(tzinfo=None)
    return AvailableAnswer(
        repo_id=model.repo_id,
        local_path=model.local_path,
        size_bytes=model.size_bytes,
        downloaded_at=downloaded.isoformat(timespec="seconds"),
    )


def _failure(view: DownloadView) -> LmxError:
    code, message = view.error_code or ErrorCode.DOWNLOAD_FAILED, view.error or "it failed"
    if code is ErrorCode.MODEL_SOURCE_INVALID:
        return RequestError(ErrorCode.NOT_FOUND, message, param=view.param or "repo_id")
    return rejection(code, message, param=view.param, retry_after_s=view.retry_after_s)
