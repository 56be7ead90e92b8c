"""GET /admin/models/download/{download_id}/progress: server-sent events until it has ended."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.inventory import DownloadView
from lmx.protocol.states import DownloadStatus
from lmx.router.admin_downloads import (
    download_answer,
    find_download,
)
from lmx.router.answer_downloads import DownloadProgress
from lmx.router.chunks import error_event
from lmx.router.following import Following
from lmx.router.services import SERVICES, Services
from lmx.router.sse import EventStream

_INTERVAL_S: Final = 0.5
_SILENCE_GRACE_S: Final = 5.0
"""A supervisor that is being replaced is gone for a second or two."""

_RUNS: Final = frozenset({DownloadStatus.STARTING, DownloadStatus.DOWNLOADING})


async def download_progress(request: web.Request) -> web.StreamResponse:
    """Send an event at once, one whenever it has advanced, at most two a second, and the last
    one at its end. Any number of clients may follow a download; none of them keeps it going."""
    services, download_id = request.app[SERVICES], request.match_info["download_id"]
    view = await find_download(services, download_id)
    stream = EventStream(request, services.spec.stall_timeout_s)
    await stream.open()
    try:
        await _follow(services, stream, view)
    except LmxError as error:
        if error.code is ErrorCode.CLIENT_STALLED:
            # It has been dropped: there is nobody to tell.
            return stream.response
        await stream.send(error_event(error))
    await stream.end()
    return stream.response


async def _follow(services: Services, stream: EventStream, view: DownloadView) -> None:
    following, sent = Following(services, stream), b""
    while True:
        event = progress_event(view)
        if event != sent:
            await following.send(event)
            sent = event
        if view.status not in _RUNS:
            return
        await asyncio.sleep(_INTERVAL_S)
        if not await following.goes_on():
            raise UnavailableError(
                ErrorCode.SHUTTING_DOWN,
                "lmx stops, or restarts its router: look at the download again in a moment. One "
                "that is interrupted goes on when it is asked for again.",
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
    fields: dict[str, Any] = {
        name: getattr(answer, name) for name in ("download_id", "status", "progress_percent")
    }
    if view.status is DownloadStatus.COMPLETED:
        fields["model_id"] = answer.model_id
    else:
        fields["downloaded_bytes"] = answer.downloaded_bytes
    if view.status in _RUNS:
        fields["speed_mbps"] = answer.speed_mbps
    if answer.error is not None:
        fields["error"] = answer.error
    return f"data: {DownloadProgress(**fields).model_dump_json(exclude_unset=True)}\n\n".encode()
