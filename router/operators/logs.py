"""GET /admin/logs/{model}: a log's last lines as server-sent events, and then each new line.

Lines are followed over rotations: a full file is copied to an older one and emptied. No file stays
open between two reads, so that a reader that is given up leaves nothing behind. The functions that
read files block, and run in threads.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import orjson
from aiohttp import web

from lmx.protocol.host.log_files import process_log, rotated, worker_log
from lmx.router.http.responses import Answer
from lmx.router.http.sse import EventStream
from lmx.router.schema.requests.operators import LogsQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES, Services
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.queries import known_model

CHUNK_BYTES: Final = 256 * 1024
"""How much is read at a time. A longer line is cut into pieces of this size."""

_TAIL_BYTES: Final = 8 * 1024 * 1024
"""How far back the last lines are looked for in one file."""

_ROTATIONS: Final = 16
"""How many files are searched for the one that was read before."""


class LogLine(Answer):
    """An event of GET /admin/logs."""

    line: str
    """One line as it stands in the file. Most lines are JSON objects."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a log was read."""

    inode: int | None
    """The file that was read; None if there was no file."""
    offset_bytes: int
    """How many of its bytes were read. They end at the end of a line."""


def last_lines(path: Path, count: int) -> tuple[list[str], Place]:
    """Return the last whole lines of a log, at most ``count``, oldest first, and where they end.

    Lines that the file lacks are taken from the file that was rotated last. A line that is still
    being written comes later, with :func:`more_lines`.
    """
    try:
        with path.open("rb") as file:
            lines, end = _tail(file, count)
            place = Place(os.fstat(file.fileno()).st_ino, end)
    except FileNotFoundError:
        lines, place = [], Place(None, 0)
    if len(lines) < count:
        try:
            with rotated(path, 1).open("rb") as file:
                older, _ = _tail(file, count - len(lines))
        except FileNotFoundError:
            older = []
        lines = [*older, *lines]
    return lines, place


def more_lines(path: Path, place: Place) -> tuple[list[str], Place]:
    """Return whole lines that were added after ``place``, at most one chunk, and where they end. If
    there are no lines, there are none yet, or they are in the next file."""
    current: int | None = None
    newer: int | None = None
    for number in range(_ROTATIONS):
        try:
            file = (rotated(path, number) if number else path).open("rb")
        except FileNotFoundError:
            continue
        with file:
            info = os.fstat(file.fileno())
            inode = info.st_ino
            if inode == place.inode:
                moved = _moved(path, place) if info.st_size < place.offset_bytes else None
                if moved is not None:
                    return more_lines(path, moved)
                lines, reached = _after(file, place)
                return lines, reached if lines or newer is None else Place(newer, 0)
        if not number:
            current = inode
        newer = inode
    # The file that was read is gone.
    return [], place if current is None else Place(current, 0)


def _moved(path: Path, place: Place) -> Place | None:
    """Return where the lines after ``place`` are now, if the file was copied to its first older one
    and emptied; None if somebody else emptied it."""
    try:
        info = rotated(path, 1).stat()
    except FileNotFoundError:
        return None
    there = info.st_size >= place.offset_bytes and info.st_ino != place.inode
    return Place(info.st_ino, place.offset_bytes) if there else None


def _after(file: BinaryIO, place: Place) -> tuple[list[str], Place]:
    # It is shorter than before: somebody emptied it.
    size = file.seek(0, os.SEEK_END)
    begin = place.offset_bytes if size >= place.offset_bytes else 0
    file.seek(begin)
    block = file.read(CHUNK_BYTES)
    end = block.rfind(b"\n") + 1
    if end:
        lines = block[:end].split(b"\n")[:-1]
    elif len(block) == CHUNK_BYTES:
        lines, end = [block], CHUNK_BYTES
    else:
        lines = []
    return _texts(lines), Place(place.inode, begin + end)


def _tail(file: BinaryIO, count: int) -> tuple[list[str], int]:
    size = file.seek(0, os.SEEK_END)
    begin = size
    block = b""
    while begin and size - begin < _TAIL_BYTES and block.count(b"\n") <= count:
        step = min(CHUNK_BYTES, begin)
        begin -= step
        file.seek(begin)
        block = file.read(step) + block
    end = block.rfind(b"\n") + 1
    lines = block[:end].split(b"\n")[:-1]
    if begin:
        lines = lines[1:]  # what comes before its beginning was not read
    last = lines[-count:] if count else []
    return _texts(last), begin + end


def _texts(lines: Sequence[bytes]) -> list[str]:
    return [line[:CHUNK_BYTES].decode(errors="replace") for line in lines]


_PROCESSES: Final = ("router", "supervisor", "fetch")
_POLL_S: Final = 0.25
_LINES_AT_ONCE: Final = 100


async def stream_log(request: web.Request) -> web.StreamResponse:
    """Send the lines of a log. The name is the id or alias of a model, for its worker's log; or it
    is ``router``, ``supervisor`` or ``fetch`` (downloads), unless a model has that name.

    A model that has never run has no lines yet. The stream ends when the client leaves, when the
    router stops, and with ``follow=false`` after the last line. Raises MODEL_NOT_FOUND.
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
    batches = _batches(services, path, lines, place, follow=query.follow)
    await stream.send_and_end(batches, services.spec.ping_interval_s)
    return stream.response


async def _batches(
    services: Services, path: Path, lines: Sequence[str], place: Place, *, follow: bool
) -> AsyncIterator[bytes]:
    """Yield ``lines``, which end at ``place``, and then new lines, until the router stops."""
    while True:
        for begin in range(0, len(lines), _LINES_AT_ONCE):
            yield _events(lines[begin : begin + _LINES_AT_ONCE])
        if not follow or services.traffic.closed:
            return
        if not lines:
            yield b""
            await asyncio.sleep(_POLL_S)
        lines, place = await asyncio.to_thread(more_lines, path, place)


def log_path(directory: Directory, folder: Path, name: str) -> Path:
    """Return the log file of a name. The name itself never becomes part of a path."""
    if known_model(directory, name) is None and name in _PROCESSES:
        return process_log(folder, name)
    return worker_log(folder, directory.base(directory.resolve(name)).model_id)


def _events(lines: Sequence[str]) -> bytes:
    return b"".join(b"data: " + orjson.dumps({"line": line}) + b"\n\n" for line in lines)
