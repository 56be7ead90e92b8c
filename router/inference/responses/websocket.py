"""GET /v1/responses: responses over a WebSocket, as the official SDK's `responses.connect` speaks
it.

Each `response.create` is a request for the route of POST, in process and with the headers of the
connection: it has the same checks, limits, counts and events. One is answered at a time; those that
come meanwhile wait.

Source: the guide "WebSocket mode" of OpenAI's API, and the types of its Python library.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.router.http.access import PERMIT, PERMIT_S
from lmx.router.http.api_family import openai_error
from lmx.router.http.bodies.json_body import IS_LARGE, give_object
from lmx.router.http.cors import is_upgrade
from lmx.router.http.errors import http_status, rejection
from lmx.router.http.in_process import SERVE, MemoryTransport, connect, request_in_process
from lmx.router.http.outcome import CONTEXT
from lmx.router.schema.validation import invalid, short, unsupported
from lmx.router.services import SERVICES

SOCKETS: Final = web.AppKey("sockets", Counter[str])
"""How many WebSockets each requester has open."""

_MOST_SOCKETS: Final = 128
_MOST_OF_ONE: Final = 32
_MOST_BYTES: Final = 8 * 1024 * 1024
"""The most of one message, of those that wait on one connection, and of what a connection keeps of
a response that is not stored."""

_MOST_WAITING: Final = 8
_HEARTBEAT_S: Final = 30.0
"""A client that answers no ping for half of this is gone."""

_LONGEST_S: Final = 3600.0
"""OpenAI's limit. What is under way then ends first."""

_CLOSE_S: Final = 5.0
_PATH: Final = "/v1/responses"
_SENT_AGAIN: Final = ("Host", "Origin", "Authorization", "X-Api-Key", "Api-Key", "User-Agent")
"""The headers of the connection that its requests have."""

_log = structlog.get_logger()


async def responses_socket(request: web.Request) -> web.StreamResponse:
    """Answer what comes over a WebSocket, until it is closed. Raises METHOD_NOT_ALLOWED for any
    other GET, and QUEUE_FULL."""
    if not is_upgrade(request):
        raise web.HTTPMethodNotAllowed("GET", ["POST"])
    services, requester = request.app[SERVICES], request[CONTEXT].requester
    sockets = request.app[SOCKETS]
    if sockets.total() >= _MOST_SOCKETS or sockets[requester] >= _MOST_OF_ONE:
        raise UnavailableError(
            ErrorCode.QUEUE_FULL,
            f"{_MOST_OF_ONE} WebSockets of one client, or {_MOST_SOCKETS} in all, are open, as "
            "many as may be: close some, or send requests to POST /v1/responses.",
            retry_after_s=5.0,
        )
    connection = web.WebSocketResponse(
        heartbeat=_HEARTBEAT_S,
        max_msg_size=min(_MOST_BYTES, services.spec.body_limit_bytes),
        compress=False,
        timeout=_CLOSE_S,
    )
    sockets[requester] += 1
    try:
        try:
            await connection.prepare(request)
        except (web.HTTPBadRequest, ValueError) as error:  # A key that is no ASCII, for example.
            words = "These headers open no WebSocket."
            raise RequestError(ErrorCode.MALFORMED_REQUEST, words) from error
        await _Socket(request, connection).run()
    finally:
        sockets[requester] -= 1
        if not sockets[requester]:
            del sockets[requester]
    return connection


class _Socket:
    """One connection. Its reader never waits for a response, so that it notices at once that the
    client has left: the response under way is cancelled then."""

    def __init__(self, request: web.Request, connection: web.WebSocketResponse) -> None:
        self._request = request
        self._connection = connection
        self._stall_timeout_s = request.app[SERVICES].spec.stall_timeout_s
        self._ends_at_s = time.monotonic() + _LONGEST_S
        self._waiting: deque[bytes] = deque()
        self._come = asyncio.Event()
        self._is_ending = False
        """Whether the connection is closed from this side."""
        self._unstored: _Unstored | None = None
        """The last response, if it was not stored."""

    async def run(self) -> None:
        """Read and answer messages until the connection is closed."""
        answering = asyncio.create_task(self._answer_all(), name="responses of a WebSocket")
        try:
            while (message := await self._connection.receive()).type in _DATA:
                await self._take(message.data)
        except ConnectionError:
            pass  # The client has left.
        finally:
            if self._is_ending:
                await asyncio.wait({answering}, timeout=_CLOSE_S)
            answering.cancel()
            await asyncio.wait({answering})
            if not answering.cancelled() and (fault := answering.exception()) is not None:
                _log.error("websocket.failed", exc_info=fault)

    async def _take(self, data: str | bytes) -> None:
        payload = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        held_bytes = sum(map(len, self._waiting)) + len(payload)
        if len(self._waiting) >= _MOST_WAITING or (self._waiting and held_bytes > _MOST_BYTES):
            await self._send_error(
                UnavailableError(
                    ErrorCode.QUEUE_FULL,
                    f"{_MOST_WAITING} messages, or {_MOST_BYTES} bytes of them, wait on this "
                    "connection, as many as may: send the next when a response has ended.",
                )
            )
            return
        self._waiting.append(payload)
        self._come.set()

    async def _answer_all(self) -> None:
        try:
            while await self._next_has_come():
                await self._answer(self._waiting.popleft())
        except ConnectionError:
            # The client has left, or an answer has broken off: nobody waits for more of it.
            await self._close(WSCloseCode.INTERNAL_ERROR)
        except Exception:
            _log.exception("websocket.failed")
            await self._close(WSCloseCode.INTERNAL_ERROR)

    async def _close(self, code: WSCloseCode) -> None:
        self._is_ending = True
        await self._connection.close(code=code)

    async def _next_has_come(self) -> bool:
        """Return whether there is a message to answer. Closes the connection if there is none and
        it has to end."""
        traffic, permit = self._request.app[SERVICES].traffic, self._request[PERMIT]
        while not self._waiting:
            self._come.clear()
            if traffic.retiring:
                await self._close(WSCloseCode.SERVICE_RESTART)
                return False
            refusal = permit.refusal(self._request)
            if refusal is not None:
                await self._send_error(refusal)
                await self._close(WSCloseCode.POLICY_VIOLATION)
                return False
            if time.monotonic() >= self._ends_at_s:
                await self._send(
                    _error_event(
                        openai_error(
                            RequestError(
                                ErrorCode.INVALID_VALUE,
                                "This WebSocket has been open for 60 minutes, as long as one may "
                                "be: open another.",
                            )
                        )["error"]
                        | {"code": "websocket_connection_limit_reached"},
                        400,
                    )
                )
                await self._close(WSCloseCode.GOING_AWAY)
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(PERMIT_S):
                    await self._come.wait()
        return True

    async def _answer(self, payload: bytes) -> None:
        """Answer one message. Whatever it is, the connection stays open."""
        sent = self._request.headers
        inner = await request_in_process(
            self._request.app,
            _PATH,
            headers={name: sent[name] for name in _SENT_AGAIN if len(sent.getall(name, ())) == 1},
            remote=self._request.remote,
        )
        last, self._unstored = self._unstored, None
        try:
            body = await give_object(inner, payload)
            _check(body)
        except LmxError as error:
            await self._send_error(error)
            return
        own = _items(body)
        earlier: list[Any] = []
        earlier_bytes = 0
        readable = isinstance(body.get("input"), str | list | None)
        if readable and last is not None and body.get("previous_response_id") == last.response_id:
            earlier, earlier_bytes = last.items, last.size_bytes
            body["input"] = [*earlier, *own]
            del body["previous_response_id"]
            inner[IS_LARGE] = True
        made = None
        if body.get("store") is False and not any(body.get(name) for name in _KEPT_ELSEWHERE):
            items = [*earlier, *(item for item in own if not _is_trigger(item))]
            made = _Unstored("", items, earlier_bytes + _size_bytes(own, len(payload)))
        transport = connect(inner)
        serving = asyncio.create_task(self._request.app[SERVE](inner), name="a response")
        serving.add_done_callback(lambda _: transport.close())
        try:
            await self._relay(transport, made)
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving})
            if not serving.cancelled():
                serving.exception()  # It is in the log.

    async def _relay(self, transport: MemoryTransport, made: "_Unstored | None") -> None:
        status, media, begun = await transport.read_head()
        if media != "text/event-stream":
            while piece := await transport.read():
                begun += piece
            await self._send(_error_event(orjson.loads(begun)["error"], status))
            return
        name = b""
        async for name, data in _events(transport, begun):
            if name == b"error":
                await self._send(_stream_error(orjson.loads(data)))
                continue
            if name in _CONTINUED and made is not None:
                response = orjson.loads(data)["response"]
                output = response["output"]
                held_bytes = made.size_bytes + _size_bytes(output, len(data))
                if held_bytes <= _MOST_BYTES:
                    items = [*made.items, *output]
                    self._unstored = _Unstored(response["id"], items, held_bytes)
            await self._send(data)
        if name not in _ENDS:
            raise ConnectionError("the answer has broken off")

    async def _send_error(self, error: LmxError) -> None:
        await self._send(_error_event(openai_error(error)["error"], http_status(error.code)))

    async def _send(self, event: bytes) -> None:
        """Send an event. Raises ``ConnectionError`` if the client has left, or takes nothing."""
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self._connection.send_str(event.decode())
        except TimeoutError as error:
            _log.warning("websocket.stalled", stall_timeout_s=self._stall_timeout_s)
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionError("the client takes nothing") from error


@dataclass(frozen=True, slots=True)
class _Unstored:
    """A response that only its connection keeps, for the next one that continues it."""

    response_id: str
    items: list[Any]
    """Its input and its output, and those of all that it continues; without the items that ask for
    a summary, which only the request itself may end with."""
    size_bytes: int
    """About how much the items have as JSON."""


_KEPT_ELSEWHERE: Final = ("previous_response_id", "conversation")
_DATA: Final = (WSMsgType.TEXT, WSMsgType.BINARY)
_CONTINUED: Final = (b"response.completed", b"response.incomplete")
_ENDS: Final = (*_CONTINUED, b"response.failed", b"error")


def _check(body: dict[str, Any]) -> None:
    """Make the body of a request of a message. Raises :class:`RequestError`."""
    kind = body.pop("type", None)
    if kind != "response.create":
        raise invalid(
            "type",
            f"must be 'response.create', got {short(kind)}: a response under way takes no further "
            "input here, and is cancelled by closing the connection.",
        )
    if body.pop("stream_id", None) is not None:
        raise unsupported(
            "stream_id", "is not supported: a connection answers one message after the other."
        )
    if body.pop("background", None):
        raise unsupported("background", "is for POST /v1/responses: leave it out.")
    body["stream"] = True


def _items(body: dict[str, Any]) -> list[Any]:
    """Return the input of a body as items; none if it is neither a text nor a list."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return given if isinstance(given, list) else []


def _is_trigger(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "compaction_trigger"


def _size_bytes(items: list[Any], most_bytes: int) -> int:
    """Return how much items have as JSON; ``most_bytes`` if they have what can't be written, like
    half of a character."""
    try:
        return len(orjson.dumps(items))
    except TypeError:
        return most_bytes


async def _events(transport: MemoryTransport, begun: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the names and the data of a stream's events, without pings and comments."""
    held, searched = bytearray(begun), 0
    while True:
        while (end := held.find(b"\n\n", searched)) >= 0:
            block = bytes(held[:end])
            del held[: end + 2]
            searched = 0
            name, _, data = block.partition(b"\ndata: ")
            if name.startswith(b"event: "):
                yield name.removeprefix(b"event: "), data
        # An end may have begun already.
        searched = max(0, len(held) - 1)
        if not (piece := await transport.read()):
            return
        held += piece


def _stream_error(event: dict[str, Any]) -> bytes:
    """Return the event of an error that came before the response had begun, in the form of
    WebSockets."""
    error = rejection(ErrorCode(event["code"]), event["message"], param=event["param"])
    return _error_event(openai_error(error)["error"], http_status(error.code))


def _error_event(error: Any, status: int) -> bytes:
    return orjson.dumps({"type": "error", "status": status, "error": error})
