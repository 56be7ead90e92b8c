"""GET /admin/logs/{model}: a log's last lines as server-sent events, and then what is added."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
from aiohttp import web

from lmx.protocol.errors import GenerationError
from lmx.protocol.log_files import process_log, worker_log
from lmx.router.directory import Directory
from lmx.router.following import Following
from lmx.router.invalid import validated
from lmx.router.log_reading import Place, last_lines, more_lines
from lmx.router.operating import known_model
from lmx.router.schemas_operation import LogsQuery
from lmx.router.services import SERVICES, Services
from lmx.router.sse import EventStream

_PROCESSES: Final = ("router", "supervisor")
_POLL_S: Final = 0.25
_LINES_AT_ONCE: Final = 100


async def stream_log(request: web.Request) -> web.StreamResponse:
    """Send the lines of a model's worker log, by the model's id or alias; those of the router's
    or the supervisor's by these names, unless a model is called so.

    A model that has never run has no lines yet. Ends when the client leaves, when the router
    stops, and with ``follow=false`` after the last line. Raises MODEL_NOT_FOUND.
    """
    services = request.app[SERVICES]
    query = validated(LogsQuery, dict(request.query))
    path = log_path(
        await services.supervisor.directory(),
        Path(services.spec.logs_dir),
        request.match_info["model"],
    )
    lines, place = await asyncio.to_thread(last_lines, path, query.lines)
    stream = EventStream(request, services.spec.stall_timeout_s)
    await stream.open()
    # A reader that takes nothing any more has been dropped, and there is nobody to tell.
    with contextlib.suppress(GenerationError):
        await _send(services, stream, path, lines, place, follow=query.follow)
        await stream.end()
    return stream.response


async def _send(
    services: Services,
    stream: EventStream,
    path: Path,
    lines: Sequence[str],
    place: Place,
    *,
    follow: bool,
) -> None:
    following = Following(services, stream)
    while True:
        for begin in range(0, len(lines), _LINES_AT_ONCE):
            await following.send(_events(lines[begin : begin + _LINES_AT_ONCE]))
        if not follow or not await following.goes_on():
            return
        if not lines:
            await asyncio.sleep(_POLL_S)
        lines, place = await asyncio.to_thread(more_lines, path, place)


def log_path(directory: Directory, folder: Path, name: str) -> Path:
    """Return the log file of a name, which itself never becomes part of a path."""
    if known_model(directory, name) is None and name in _PROCESSES:
        return process_log(folder, name)
    return worker_log(folder, directory.resolve(name).model_id)


def _events(lines: Sequence[str]) -> bytes:
    return b"".join(b"data: " + orjson.dumps({"line": line}) + b"\n\n" for line in lines)
