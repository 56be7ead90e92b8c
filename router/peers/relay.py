"""Takes one request to a peer, and the peer's answer to the client.

Until the first byte of an answer has come, another machine may be asked instead
(:class:`NothingCameError`). From then on the answer ends with an error if the peer is lost.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError, UnavailableError
from lmx.protocol.messages.peers import PeerKind
from lmx.router.byte_budget import ByteShare
from lmx.router.http.errors import rejection
from lmx.router.http.outcome import (
    CONTEXT,
    OUTCOME_HEADER,
    follow_outcome,
    note_ignored,
    outcome_of,
    set_outcome,
)
from lmx.router.http.responses import json_text
from lmx.router.http.sse import EventStream
from lmx.router.jobs.live import LiveRequest
from lmx.router.peers.answer_form import JSON, AnswerForm
from lmx.router.peers.cutters import EventCutter, FileCutter
from lmx.router.peers.forms import Form
from lmx.router.peers.forwarded import read_record
from lmx.router.peers.link import OTHER_CERTIFICATE, PeerLink
from lmx.router.peers.targets import unavailable
from lmx.router.workers.fallback import NOT_LOADED

_MOST_ERROR_BYTES: Final = 64 * 1024
_MOST_ANSWER_BYTES: Final = 256 * 1024 * 1024
MOST_ANSWERS_BYTES: Final = 2 * _MOST_ANSWER_BYTES
"""What the answers of all peers that are no streams may hold together."""

SMALL_ANSWER_BYTES: Final = 64 * 1024
"""What an answer may always have, also when large ones hold all of it."""

_MOST_KEPT: Final = 64
"""A request beyond so many at a time to a peer closes its connection when it ends: so no more than
that are kept for later ones."""

_MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
_SILENCE_S: Final = 120.0
"""A stream without a whole event for this long has ended, whatever bytes came and though its peer
answers otherwise: a busy one sends pings."""

_FILE_SILENCE_S: Final = 1800.0
"""A file has no pings, and a slow machine takes long for a sentence."""

_LOOK_S: Final = 1.0
_RETURN_LOOK_S: Final = 0.25
_IGNORED_HEADER: Final = "X-Lmx-Ignored"

_ELSEWHERE: Final = NOT_LOADED | {
    ErrorCode.MODEL_LOADING,
    ErrorCode.QUEUE_FULL,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.RATE_LIMIT_EXCEEDED,
    ErrorCode.ROUTER_HUNG,
    ErrorCode.SHUTTING_DOWN,
    ErrorCode.SUPERVISOR_UNAVAILABLE,
    ErrorCode.PEER_UNAVAILABLE,
    ErrorCode.PEER_LOST,
}
"""With these errors another machine is asked. Those of a lost worker are left out on purpose, as on
one machine: this very request may have caused it."""


class NothingCameError(Exception):
    """A machine has not answered, and nothing of an answer was sent: another one may be asked.
    ``error`` is what the client gets if there is none."""

    def __init__(self, error: LmxError) -> None:
        super().__init__(error.message)
        self.error = error


def may_go_elsewhere(error: LmxError) -> bool:
    """Return whether another machine may be asked after an error that came before any output."""
    return error.code in _ELSEWHERE


@dataclass(frozen=True, slots=True)
class Letter:
    """A request as it is sent to peers."""

    path: str
    body: bytes | Form
    headers: Mapping[str, str]
    form: AnswerForm
    media_types: Collection[str]
    """What an answer may be that is a file or a text; empty: it is JSON, or events."""
    prompt_tokens: int
    """About how many its text has: they are counted if the peer does not say how many it had."""


@dataclass(slots=True)
class Answer:
    """The beginning of a peer's answer, with its first bytes."""

    link: PeerLink
    response: aiohttp.ClientResponse
    first: bytes


async def opened(
    link: PeerLink, letter: Letter, held: ByteShare, return_s: Callable[[], float]
) -> Answer:
    """Send a request to a peer and return its answer, once its first bytes have come; the whole of
    it if it is no stream, which is counted in ``held``. The caller closes its response.

    ``return_s`` is called again and again while the peer counts as lost, and returns how long to
    wait for it from when it was lost: it may only have stood still, and be computing.

    Raises :class:`NothingCameError` if the peer does not answer, also once it counts as lost, and
    :class:`LmxError` for an error that another machine would have too, or QUEUE_FULL if there is no
    room for the answer.
    """
    work = asyncio.create_task(_answered(link, letter, held), name=f"peer {link.name}")
    lost = asyncio.create_task(link.lost.wait())
    try:
        while True:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not await _returns(link, work, return_s):
                break
            if work.done():
                return work.result()
            lost = asyncio.create_task(link.lost.wait())
    finally:
        lost.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            if not work.cancelled() and work.exception() is None:
                work.result().response.close()
    raise NothingCameError(unavailable(link))


async def _returns(
    link: PeerLink, work: asyncio.Task[Answer], return_s: Callable[[], float]
) -> bool:
    """Return whether a lost peer answers this request or others again while it is waited for."""
    lost_at_s = time.monotonic()
    while link.lost.is_set() and not work.done():
        if time.monotonic() >= lost_at_s + return_s():
            return False
        await asyncio.wait({work}, timeout=_RETURN_LOOK_S)
    return True


async def _answered(link: PeerLink, letter: Letter, held: ByteShare) -> Answer:
    try:
        response = await _sent(link, letter)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        if isinstance(error, aiohttp.ServerFingerprintMismatch):
            link.lose(OTHER_CERTIFICATE)
        elif isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            link.lose("it can't be reached")
        raise NothingCameError(unavailable(link)) from error
    whole = False
    try:
        if response.status != 200:
            _refused(link, response, await _start(response, _MOST_ERROR_BYTES, held))
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise NothingCameError(_nonsense(link))
        if letter.media_types and response.content_type not in letter.media_types:
            raise NothingCameError(_nonsense(link))
        if response.content_type == "text/html":  # A page of something before the server.
            raise NothingCameError(_nonsense(link))
        if letter.form is AnswerForm.EVENTS and response.content_type == JSON:
            # A server that ignores `stream`. A client that reads events would find none in it.
            raise NothingCameError(_nonsense(link))
        if letter.form is not AnswerForm.WHOLE:
            first = await response.content.readany()
        else:
            first = await _start(response, _MOST_ANSWER_BYTES, held)
            if len(first) > _MOST_ANSWER_BYTES:
                raise NothingCameError(_nonsense(link))
        if not first:
            raise NothingCameError(unavailable(link))
        whole = True
        return Answer(link, response, first)
    except (aiohttp.ClientError, OSError) as error:
        raise NothingCameError(unavailable(link)) from error
    finally:
        if not whole:
            response.close()


async def _sent(link: PeerLink, letter: Letter) -> aiohttp.ClientResponse:
    """Send a request and return the answer to it once its head has come. A peer may have closed a
    kept connection in the very moment in which it is used: then another one is taken. Each
    connection that fails is kept no more, and what fails on a new one is raised."""
    headers = {**letter.headers, **link.headers()}
    if link.running > _MOST_KEPT:
        headers["Connection"] = "close"
    while True:
        connection = _Connection()
        try:
            return await link.session.post(
                f"{link.peer.url}{letter.path}",
                data=letter.body if isinstance(letter.body, bytes) else letter.body.data(),
                headers=headers,
                allow_redirects=False,
                ssl=link.ssl,
                trace_request_ctx=connection,
            )
        except aiohttp.ClientConnectionError:
            if not connection.was_kept:
                raise


@dataclass(slots=True)
class _Connection:
    """Whether a request got a connection that another one has used."""

    was_kept: bool = False


def note_kept() -> aiohttp.TraceConfig:
    """Return what a session needs to note that in a request's ``trace_request_ctx``."""

    async def note(_: object, context: Any, __: object) -> None:
        if isinstance(context.trace_request_ctx, _Connection):
            context.trace_request_ctx.was_kept = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config


async def _start(response: aiohttp.ClientResponse, most_bytes: int, held: ByteShare) -> bytes:
    """Return a body, or a little more of it than ``most_bytes``. Raises QUEUE_FULL if there is no
    room for it."""
    pieces, size_bytes = [], 0
    async for piece in response.content.iter_any():
        held.grow(len(piece))
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > most_bytes:
            break
    return b"".join(pieces)


def _refused(link: PeerLink, response: aiohttp.ClientResponse, payload: bytes) -> None:
    """Raise what a peer's refusal means for the client."""
    error = _error(link, response, payload)
    if may_go_elsewhere(error):
        raise NothingCameError(error)
    raise error


def _error(link: PeerLink, response: aiohttp.ClientResponse, payload: bytes) -> LmxError:
    code, message, param = _reported(payload)
    status = response.status
    if status == 403:
        # The key is not for this model or this API. It may be for others, whose requests would
        # suffer if the peer counted as lost. A key that opens nothing is noticed by the next poll.
        what = "the model" if param == "model" else "this request"
        return UnavailableError(
            ErrorCode.PEER_UNAVAILABLE,
            f"The machine {link.name} has a key for this machine that is not for {what}.",
        )
    if status == 401 or 300 <= status < 400:
        # It is about this machine's key or address, which the client can't help.
        link.lose(f"it answers requests with the status {status}")
        return unavailable(link)
    if code is None:
        by_status = {404: ErrorCode.MODEL_NOT_FOUND, 429: ErrorCode.RATE_LIMIT_EXCEEDED}
        rest = ErrorCode.INVALID_VALUE if status < 500 else ErrorCode.PEER_UNAVAILABLE
        code = by_status.get(status, rest)
        message = f"The machine {link.name} answered with the status {status}: {message}"
    after = response.headers.get("Retry-After", "")
    wait_s = float(after) if after.isdecimal() and len(after) < 6 else None
    return rejection(code, message, param=param, retry_after_s=wait_s)


def _reported(payload: bytes) -> tuple[ErrorCode | None, str, str | None]:
    """Return the code, the message and the field of an error in the form of any API family."""
    try:
        body = orjson.loads(payload)
        found = body["error"]
        if not isinstance(found, dict):
            found = {**body, "message": found}
        param, message = found.get("param"), found.get("message")
        text = message if isinstance(message, str) else ""
        return _code(found.get("code")), text, param if isinstance(param, str) else None
    except (ValueError, LookupError, TypeError):
        return None, "", None


def _code(given: Any) -> ErrorCode | None:
    try:
        return ErrorCode(given)
    except ValueError:
        return None


def _nonsense(link: PeerLink) -> LmxError:
    return GenerationError(
        ErrorCode.PEER_LOST, f"The machine {link.name} gave an answer that is invalid."
    )


async def passed_on(
    request: web.Request,
    live: LiveRequest,
    answer: Answer,
    letter: Letter,
    events: EventStream,
    silence_s: float,
) -> web.StreamResponse:
    """Send a peer's answer to the client, and note the request's figures. A peer that counts as
    lost and sends no whole event for ``silence_s`` is given up. Closes the peer's response. If
    ``live`` is cancelled, its error is raised between two events.

    Raises an error in the middle of a file, in which it can't be said: its connection is to break,
    so that nobody takes it for whole."""
    context = request[CONTEXT]
    outcome = replace(outcome_of(request), ttft_s=time.monotonic() - context.started_at_s)
    if ignored := answer.response.headers.get(_IGNORED_HEADER):
        note_ignored(request, [one.strip() for one in ignored.split(",")[:20]])
    if letter.form is AnswerForm.WHOLE:
        answer.response.release()
        given = answer.response.headers.get(OUTCOME_HEADER)
        figures = _usage(answer.first) if given is None else read_record(given.encode())
        set_outcome(request, replace(outcome, **figures))
        if answer.response.content_type not in letter.media_types:
            return json_text(answer.first)
        media_type = answer.response.content_type
        charset = None if media_type == JSON else "utf-8"
        return web.Response(body=answer.first, content_type=media_type, charset=charset)
    counted = Counter[str]()
    # A client that leaves has used what it got, and the peer can't say any more what that was.
    follow_outcome(
        request,
        lambda: replace(
            outcome,
            prompt_tokens=letter.prompt_tokens,
            completion_tokens=counted["completion_tokens"],
        ),
    )
    try:
        if letter.form is AnswerForm.FILE:
            figures = await _file_sent(answer, live, events, silence_s)
        else:
            figures = await _streamed(answer, live, events, silence_s, counted)
    except GenerationError as lost:
        if lost.code is not ErrorCode.PEER_LOST or letter.form is AnswerForm.FILE:
            raise
        outcome = replace(outcome, error=lost.code.value)
        await events.send(events.family.error_event(lost, context.request_id))
        await events.end()
        return events.response
    finally:
        # It is closed unless all of it was read.
        answer.response.close()
    if figures:
        set_outcome(request, replace(outcome, **figures))
    await events.end()
    return events.response


async def _streamed(
    answer: Answer,
    live: LiveRequest,
    events: EventStream,
    silence_s: float,
    counted: Counter[str],
) -> dict[str, Any]:
    """Send a stream's whole events as they come, and return the figures behind them, or, of a
    server that sends no record, those in its last event with any; empty if there are none. Each
    event counts as a token until then. Raises PEER_LOST if the stream breaks off, and as
    :meth:`EventStream.send` does."""
    end = b"\n" if events.family.ping == b" " else b"\n\n"
    is_lmx = answer.link.peer.kind is PeerKind.LMX
    cutter = EventCutter(end, has_record=is_lmx)
    figures: dict[str, Any] = {}
    if not events.is_open:
        await events.open()
    chunk, since_s = answer.first, time.monotonic()
    while chunk:
        # Other servers may end lines with CRLF, and no JSON text has a bare CR.
        if whole := cutter.cut(chunk if is_lmx else chunk.replace(b"\r", b"")):
            counted["completion_tokens"] += whole.count(end)
            if not is_lmx and _USAGE in whole:
                figures = _last_usage(whole) or figures
            await _send(events, whole)
            since_s = time.monotonic()
        if cutter.held_bytes > _MOST_EVENT_BYTES:
            raise _nonsense(answer.link)
        chunk = await live.interruptible(_next(answer, silence_s, since_s))
    if rest := cutter.rest:
        # Some servers end their last event with the stream.
        figures = _last_usage(rest) or figures
        await events.send(rest + end)
    return read_record(cutter.record) if is_lmx else figures


async def _file_sent(
    answer: Answer, live: LiveRequest, events: EventStream, silence_s: float
) -> dict[str, Any]:
    """Send a file as it comes, and return the figures behind it. Raises as :func:`_streamed`."""
    cutter = FileCutter()
    await events.open()
    chunk = answer.first
    while chunk:
        if part := cutter.cut(chunk):
            await events.send(part)
        following = _next(answer, silence_s, time.monotonic(), _FILE_SILENCE_S)
        chunk = await live.interruptible(following)
    rest, record = cutter.end()
    if not record:
        raise _lost(answer.link)
    if rest:
        await events.send(rest)
    return read_record(record)


async def _send(events: EventStream, whole: bytes) -> None:
    if events.keeps_up:
        events.write(whole)
    else:
        await events.send(whole)


async def _next(
    answer: Answer, silence_s: float, since_s: float, longest_s: float | None = None
) -> bytes:
    """Return the next bytes of a stream, whose last whole event came at ``since_s``; none at its
    end. ``longest_s`` is how long it may be silent though its peer answers otherwise."""
    longest_s = _SILENCE_S if longest_s is None else longest_s
    link = answer.link
    while True:
        if time.monotonic() - since_s >= (silence_s if link.lost.is_set() else longest_s):
            raise _lost(link)
        try:
            async with asyncio.timeout(_LOOK_S):
                return await answer.response.content.readany()
        except TimeoutError:
            continue
        except (aiohttp.ClientError, OSError) as error:
            raise _lost(link) from error


def _lost(link: PeerLink) -> GenerationError:
    return GenerationError(
        ErrorCode.PEER_LOST,
        f"The machine {link.name}, which computed the answer, was lost in the middle of it. Send "
        "the request again: another machine answers it, if one can.",
    )


_USAGE: Final = b'"usage"'


def _last_usage(events: bytes) -> dict[str, Any]:
    """Return the figures of the last of some server-sent events that has any."""
    lines = (line for line in reversed(events.splitlines()) if _USAGE in line)
    found = (_usage(line.removeprefix(b"data:")) for line in lines)
    return next(filter(None, found), {})


def _usage(payload: bytes) -> dict[str, Any]:
    """Return the figures of a whole answer, or of an event, of a server that sends no record."""
    try:
        usage = orjson.loads(payload).get("usage")
    except (ValueError, AttributeError):
        return {}
    if not isinstance(usage, dict):
        return {}
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return read_record(orjson.dumps(counts))


def not_begun(seconds: float) -> GenerationError:
    """Return the error for a stream that a machine has not begun in time."""
    return GenerationError(
        ErrorCode.DEADLINE_EXCEEDED,
        f"The machine that was asked has sent nothing for {seconds:g} s (server.sync_timeout_s).",
    )


def too_late(seconds: float) -> GenerationError:
    """Return the error for an answer that takes longer than a client may wait."""
    return GenerationError(
        ErrorCode.DEADLINE_EXCEEDED,
        f"The answer takes longer than {seconds:g} s, as long as a request waits "
        "(server.sync_timeout_s), and another machine computed it: it was ended. Send the request "
        "with `stream`.",
    )
