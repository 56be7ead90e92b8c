"""The routes about downloads: begin, list, show, follow and cancel them, and list what is on disk.

The progress of a download is a stream of server-sent events until the download has ended.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final, Literal, NotRequired

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.messages.inventory import (
    Available,
    AvailableModel,
    CancelDownload,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    StartDownload,
)
from lmx.protocol.states import DownloadStatus, QuantizedBits
from lmx.router.http.api_family import ErrorContext, ErrorObject, openai_error
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.endpoint import family_of
from lmx.router.http.errors import rejection
from lmx.router.http.responses import Answer, json_value
from lmx.router.http.sse import EventStream
from lmx.router.schema.requests.operators import DownloadRequest
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES, Services
from lmx.router.supervisor.queries import COMMAND_DEADLINE_S, ask, params_named

DOWNLOAD_ERRORS: Final = (
    ErrorCode.NOT_FOUND,
    ErrorCode.DOWNLOAD_FAILED,
    ErrorCode.INSUFFICIENT_DISK,
    ErrorCode.MODEL_UNLOADED,
    ErrorCode.QUEUE_FULL,
)
"""The errors with which a download can be refused, besides those of every route."""

_START_DEADLINE_S: Final = 60.0
"""The hub is asked for the size first."""

_SCAN_DEADLINE_S: Final = 60.0
"""The time for a cache of thousands of files, on a disk that was asleep."""

_DEFAULT_REVISION: Final = "main"


_FIELDS: Final = {"source": "repo_id"}


DownloadState = Literal["downloading", "completed", "failed", "cancelled", "interrupted"]
"""``interrupted`` means that lmx ended while the download ran. It resumes where it stopped when it
is requested again, like a download that failed or was cancelled."""
_STATES: Final[dict[DownloadStatus, DownloadState]] = {
    DownloadStatus.STARTING: "downloading",
    DownloadStatus.DOWNLOADING: "downloading",
    DownloadStatus.COMPLETED: "completed",
    DownloadStatus.FAILED: "failed",
    DownloadStatus.CANCELLED: "cancelled",
    DownloadStatus.INTERRUPTED: "interrupted",
}


class DownloadAnswer(Answer):
    """One download."""

    download_id: str
    repo_id: str
    revision: str
    filename: str | None
    estimated_size_bytes: int | None
    """Null until it is known."""
    status: DownloadState
    progress_percent: float | int
    downloaded_bytes: int
    speed_mbps: float
    """Megabits (10^6 bits) per second."""
    started_at: float
    ended_at: float | None
    model_id: str | None
    """The id under which the model is served, once the download is completed."""
    error: ErrorObject | None
    bits: NotRequired[QuantizedBits]
    """To how many bits it is quantized once it is here. Absent: it is served as it is."""
    note: NotRequired[str]
    """How far the quantization is, and then how well the model predicts a text before and after."""


class DownloadsAnswer(Answer):
    """The answer of GET /admin/models/download: the latest download comes first."""

    downloads: list[DownloadAnswer]
    count: int


class DownloadProgress(Answer):
    """One event of a download's progress."""

    download_id: str
    status: DownloadState
    progress_percent: float | int
    downloaded_bytes: NotRequired[int | None]
    """Present while the download runs."""
    speed_mbps: NotRequired[float | None]
    """Present while the download runs."""
    model_id: NotRequired[str | None]
    """Present once the download is completed."""
    error: NotRequired[ErrorObject | None]
    """Present if the download ended in any other way."""


class AvailableAnswer(Answer):
    """A model on this machine's disk."""

    repo_id: str
    local_path: str
    size_bytes: int
    downloaded_at: str
    """ISO 8601 in UTC, without an offset."""
    model_id: str | None
    """The id under which it is served. Null if it is not served."""


async def start_download(request: web.Request) -> web.Response:
    """Begin a download, or return the one that is already running for the same files.

    It continues by itself. A download that fails at once is an error: 404 if the hub has no such
    repository, revision or file, does not let lmx see it, or has nothing in it that lmx can load.
    """
    services = request.app[SERVICES]
    wanted = validated(DownloadRequest, await read_object(request, services.spec.body_limit_bytes))
    revision = None if wanted.revision == _DEFAULT_REVISION else wanted.revision
    bits = None if wanted.bits is None else QuantizedBits(str(wanted.bits))
    question = StartDownload(wanted.repo_id, revision, wanted.filename, bits)
    with params_named(_FIELDS):
        view = await ask(services.supervisor, question, DownloadView, _START_DEADLINE_S)
    if view.status is DownloadStatus.FAILED:
        raise _failure(view)
    return json_value(download_answer(view))


async def list_downloads(request: web.Request) -> web.Response:
    """Return all known downloads, the latest first."""
    supervisor = request.app[SERVICES].supervisor
    found = await ask(supervisor, GetDownloads(), Downloads, COMMAND_DEADLINE_S)
    answers = [download_answer(view) for view in found.downloads]
    return json_value(DownloadsAnswer(downloads=answers, count=len(answers)))


async def get_download(request: web.Request) -> web.Response:
    """Return one download."""
    view = await find_download(request.app[SERVICES], request.match_info["download_id"])
    return json_value(download_answer(view))


async def cancel_download(request: web.Request) -> web.Response:
    """End a download. The part that has arrived stays, for the next request for it."""
    supervisor = request.app[SERVICES].supervisor
    question = CancelDownload(request.match_info["download_id"])
    view = await ask(supervisor, question, DownloadView, COMMAND_DEADLINE_S)
    return json_value(download_answer(view))


async def available_models(request: web.Request) -> web.Response:
    """Return the models that are complete on this machine's disk, whether they are served or
    not."""
    found = await ask(request.app[SERVICES].supervisor, GetAvailable(), Available, _SCAN_DEADLINE_S)
    return json_value([available_answer(model) for model in found.models])


async def find_download(services: Services, download_id: str) -> DownloadView:
    """Return the present state of a download. Raises NOT_FOUND if there is none."""
    found = await ask(services.supervisor, GetDownloads(download_id), Downloads, COMMAND_DEADLINE_S)
    return found.downloads[0]


def download_answer(view: DownloadView) -> DownloadAnswer:
    """Return a download in the form of its routes."""
    answer = DownloadAnswer(
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
    if view.bits is not None:
        answer["bits"] = view.bits
    if view.note is not None:
        answer["note"] = view.note
    return answer


def percent_done(view: DownloadView) -> float | int:
    """Return how much of a download has arrived: 100 only when it is completed."""
    if view.status is DownloadStatus.COMPLETED:
        return 100
    if not view.total_bytes:
        return 0.0
    return min(round(100 * view.downloaded_bytes / view.total_bytes, 1), 99.9)


def megabits(speed_bytes_per_s: float) -> float:
    """Return a speed in Mbit/s (10^6 bits), the usual unit of network speeds."""
    return round(8 * speed_bytes_per_s / 1e6, 1)


def fault(view: DownloadView) -> ErrorObject | None:
    """Return why a download did not end well; None while it runs, and if it ended well."""
    if view.error_code is None:
        return None
    return openai_error(_failure(view), ErrorContext(operator=True))["error"]


def available_answer(model: AvailableModel) -> AvailableAnswer:
    """Return a model on disk in the form of its route."""
    downloaded = datetime.fromtimestamp(model.downloaded_at_s, UTC).replace(tzinfo=None)
    return AvailableAnswer(
        repo_id=model.repo_id,
        local_path=model.local_path,
        size_bytes=model.size_bytes,
        downloaded_at=downloaded.isoformat(timespec="seconds"),
        model_id=model.model_id,
    )


def _failure(view: DownloadView) -> LmxError:
    code, message = view.error_code or ErrorCode.DOWNLOAD_FAILED, view.error or "it failed"
    if view.param == "bits":
        return RequestError(ErrorCode.INVALID_VALUE, message, param=view.param)
    if code is ErrorCode.MODEL_SOURCE_INVALID:
        return RequestError(ErrorCode.NOT_FOUND, message, param=view.param or "repo_id")
    return rejection(code, message, param=view.param, retry_after_s=view.retry_after_s)


_INTERVAL_S: Final = 0.5
_SILENCE_GRACE_S: Final = 5.0
"""A supervisor that is being replaced is gone for a second or two."""

_RUNS: Final = frozenset({DownloadStatus.STARTING, DownloadStatus.DOWNLOADING})


async def download_progress(request: web.Request) -> web.StreamResponse:
    """Send an event at once, then one whenever the download has advanced (at most two per second),
    and a last one at its end. Any number of clients may follow a download; it continues without
    them."""
    services, download_id = request.app[SERVICES], request.match_info["download_id"]
    view = await find_download(services, download_id)
    stream = EventStream(request, services.spec.stall_timeout_s)
    await stream.open()
    try:
        await stream.send_each(_progress(services, view), services.spec.ping_interval_s)
    except LmxError as error:
        if error.code is ErrorCode.CLIENT_STALLED:
            # The client has been dropped, so nobody can be notified.
            return stream.response
        await stream.send(family_of(request).error_event(error, None))
    await stream.end()
    return stream.response


async def _progress(services: Services, view: DownloadView) -> AsyncIterator[bytes]:
    """Yield an event for each state of a download that differs from the one before, until it has
    ended. Raises SHUTTING_DOWN if the router stops before that."""
    last = b""
    while True:
        event = progress_event(view)
        yield b"" if event == last else event
        last = event
        if view.status not in _RUNS:
            return
        await asyncio.sleep(_INTERVAL_S)
        if services.traffic.closed:
            raise UnavailableError(
                ErrorCode.SHUTTING_DOWN,
                "lmx stops, or restarts its router: look at the download again in a moment. One "
                "that is interrupted resumes when it is requested again.",
            )
        view = await _look(services, view.download_id)


async def _look(services: Services, download_id: str) -> DownloadView:
    try:
        return await find_download(services, download_id)
    except LmxError as error:
        if error.code is not ErrorCode.SUPERVISOR_UNAVAILABLE:
            raise
        if not await services.supervisor.answers_again(_SILENCE_GRACE_S):
            raise
    return await find_download(services, download_id)


def progress_event(view: DownloadView) -> bytes:
    """Return a download as one event."""
    answer = download_answer(view)
    fields: DownloadProgress = {
        "download_id": answer["download_id"],
        "status": answer["status"],
        "progress_percent": answer["progress_percent"],
    }
    if view.status is DownloadStatus.COMPLETED:
        fields["model_id"] = answer["model_id"]
    else:
        fields["downloaded_bytes"] = answer["downloaded_bytes"]
    if view.status in _RUNS:
        fields["speed_mbps"] = answer["speed_mbps"]
    if answer["error"] is not None:
        fields["error"] = answer["error"]
    return b"data: " + orjson.dumps(fields) + b"\n\n"
