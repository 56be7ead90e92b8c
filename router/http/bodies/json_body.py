"""Reads a request's body into a JSON object, within limits of size, time, depth and amount."""

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import jiter
import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError
from pydantic import TypeAdapter, ValidationError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.byte_budget import ByteBudget, ByteShare
from lmx.router.event_loop import yield_to_loop
from lmx.router.http.bodies.capture import CAPTURES
from lmx.router.http.bodies.encoding import decoded, encoding_of
from lmx.router.http.bodies.limits import ALWAYS_BYTES, SMALL_BYTES, check_amounts
from lmx.router.http.cors import is_of_browser
from lmx.router.http.rate_limits import ADMISSION
from lmx.router.http.token_estimate import estimate_in_steps, estimated_tokens

LARGE_BODIES: Final = web.AppKey("large_bodies", asyncio.Lock)
"""This lock is held while a large body is counted and parsed: between two of them everything else
gets its turn."""

IS_LARGE: Final = web.RequestKey("is_large", bool)
"""A request carries this if its body, or what it continues, is large."""

BODY_BUDGET: Final = web.AppKey("body_budget", ByteBudget)
"""The memory of the bodies that are being received: clients may send them slowly."""

READ: Final = web.RequestKey[dict[str, Any]]("read")
"""The object of a request that was read before its handler was called."""

MAX_DEPTH: Final = 100
"""Containers within containers. Beyond it code that recurses over a body would be at risk."""

GIVEN: Final = web.RequestKey[tuple[dict[str, Any], bool]]("given")
"""The object of a request that came in another way than as its body, and whether it is large."""

_BOM: Final = b"\xef\xbb\xbf"
_DUPLICATE: Final = re.compile(r'Detected duplicate key "(.*)" at (line \d+ column \d+)', re.DOTALL)
_KEY_SHOWN: Final = 60
"""Characters of a key that an error repeats."""

_CHECKED_AT_ONCE: Final = 4_000
"""How many messages and parts are checked in one step: some milliseconds of work."""

_Parsed = TypeVar("_Parsed")

READ_DEADLINE_S: Final = 60.0
"""The time limit for the whole body. A client that sends slowly occupies its own connection for
this long, and nothing else."""


async def read_object(request: web.Request, limit_bytes: int) -> dict[str, Any]:
    """Return the request's JSON object.

    Never holds more than ``limit_bytes`` (plus one network chunk) of a body in memory: a larger
    body is refused as soon as its size shows, from Content-Length or while it is read. Raises
    :class:`RequestError`; also QUEUE_FULL while other bodies take too much memory, and
    RATE_LIMIT_EXCEEDED if the client has too few tokens left for what the object requests.
    """
    if READ in request:
        found: dict[str, Any] = request.pop(READ)
        return found
    parsed, large = request.pop(GIVEN, None) or await _read_body(request, limit_bytes)
    admission = request.get(ADMISSION)
    if admission is not None:
        tokens = await _estimated(request, parsed, large=large)
        admission.charge(tokens, time.monotonic())
    request.app[CAPTURES].take(request, parsed)
    return parsed


async def give_object(request: web.Request, payload: bytes) -> dict[str, Any]:
    """Parse what :func:`read_object` returns later for a request in process, and return it: its
    caller may still change it. Raises as that does."""
    with request.app[BODY_BUDGET].share(ALWAYS_BYTES) as share:
        share.grow(len(payload))
        parsed = await _parsed(request, payload, parse_object)
    request[GIVEN] = parsed, len(payload) > SMALL_BYTES
    return parsed


async def _read_body(request: web.Request, limit_bytes: int) -> tuple[dict[str, Any], bool]:
    _check_content_type(request)
    encoding_of(request)
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_large(limit_bytes)
    with request.app[BODY_BUDGET].share(ALWAYS_BYTES) as share:
        payload = await _read_in_time(request, limit_bytes, share)
        parsed = await _parsed(request, payload, parse_object)
    return parsed, len(payload) > SMALL_BYTES


async def next_step(request: web.Request) -> None:
    """Let others have their turn between two steps with a large body: its validation, what is made
    of it and the message to a worker take some hundredths of a second each for the largest."""
    if IS_LARGE in request:
        await yield_to_loop()


async def checked_ahead(
    request: web.Request,
    body: dict[str, Any],
    field: str,
    check: TypeAdapter[list[Any]],
    shaped: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body,
) -> dict[str, Any]:
    """Return a body whose list ``field`` is checked already, some values in a step, if it is large.

    The check of the whole body takes what was checked as it is. From the first value on that is not
    right they are left to that check, which reports the fault: faults of other fields may come
    before it. ``shaped`` is what puts a body into the shape that ``check`` knows.
    """
    if IS_LARGE not in request:
        return body
    body = shaped(body)
    values = body.get(field)
    if not isinstance(values, list):
        return body
    checked: list[Any] = []
    for part in _parts(values):
        await yield_to_loop()
        try:
            checked += check.validate_python(part)
        except ValidationError:
            break
    return {**body, field: [*checked, *values[len(checked) :]]}


def _parts(values: list[Any]) -> Iterator[list[Any]]:
    """Yield values that hold a step's work together, in their order."""
    part: list[Any] = []
    held = 0
    for value in values:
        part.append(value)
        held += 1 + _entries(value, 2)
        if held >= _CHECKED_AT_ONCE:
            yield part
            part, held = [], 0
    if part:
        yield part


def _entries(value: Any, levels: int) -> int:
    """Return how many entries the lists in a value have, and those in its entries."""
    lists = (
        [one for one in value.values() if isinstance(one, list)] if isinstance(value, dict) else ()
    )
    below = (
        (_entries(one, levels - 1) for entries in lists for one in entries) if levels > 1 else ()
    )
    return sum(map(len, lists)) + sum(below)


@asynccontextmanager
async def arriving_in_time(deadline_s: float | None = None) -> AsyncIterator[None]:
    """Bound the time in which a body is read, by default to ``READ_DEADLINE_S``. Raises
    :class:`RequestError` (408) when it is over."""
    deadline_s = READ_DEADLINE_S if deadline_s is None else deadline_s
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise RequestError(
            ErrorCode.REQUEST_TIMEOUT,
            f"The request body did not arrive within {deadline_s:.0f} s.",
        ) from error


async def _read_in_time(request: web.Request, limit_bytes: int, share: ByteShare) -> bytes:
    try:
        async with arriving_in_time():
            return await _read(request, limit_bytes, share)
    except (web.PayloadAccessError, RequestPayloadError, zlib.error) as error:
        raise RequestError(
            ErrorCode.INVALID_JSON, "The request body could not be decoded: check its encoding."
        ) from error


async def parse_stored(request: web.Request, pieces: Sequence[bytes]) -> list[Any]:
    """Return the values in ``pieces``, each of them JSON that lmx has stored, within the limits of
    a body: what came in many bodies is no less work together. Raises as :func:`read_object`
    does."""
    payload = b"[" + b",".join(pieces) + b"]"
    with request.app[BODY_BUDGET].share(ALWAYS_BYTES) as share:
        share.grow(len(payload))
        return await _parsed(request, payload, _loaded_list)


def _loaded_list(payload: bytes) -> list[Any]:
    values: list[Any] = orjson.loads(payload)
    return values


async def _parsed(
    request: web.Request, payload: bytes, parse: Callable[[bytes], _Parsed]
) -> _Parsed:
    if len(payload) <= SMALL_BYTES:
        return parse(payload)
    async with request.app[LARGE_BODIES]:
        request[IS_LARGE] = True
        for _ in check_amounts(payload):
            await yield_to_loop()
        value = parse(payload)
        # The next step with it (the validation) takes as long again.
        await yield_to_loop()
    return value


async def _estimated(request: web.Request, body: dict[str, Any], *, large: bool) -> float:
    if not large:
        return estimated_tokens(body)
    tokens = 0.0
    async with request.app[LARGE_BODIES]:
        for part in estimate_in_steps(body):
            tokens += part
            await yield_to_loop()
    return tokens


def parse_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in ``payload``, whose amounts have been checked. Raises
    :class:`RequestError` (400).

    NaN and Infinity are not JSON and are refused. So are half of a surrogate pair and a key that an
    object has twice, since it is unknown which of the two was meant. Numbers may have any size
    here; the schema defines what each field takes (:mod:`lmx.router.schema.validation`).

    Parsing runs on the event loop, whatever the size: no parser releases the interpreter's lock, so
    a thread would hold the loop up as well. 1 KB takes 1 us, 16 MB in one string 2 ms, and the most
    that :mod:`lmx.router.http.bodies.limits` lets through, a million numbers or 150,000 names,
    40 ms.
    """
    try:
        value = jiter.from_json(payload, catch_duplicate_keys=True, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(ErrorCode.INVALID_JSON, _describe(payload, str(error))) from error
    if not isinstance(value, dict):
        raise RequestError(
            ErrorCode.INVALID_TYPE,
            f"The request body must be a JSON object, got {json_type(value)}.",
        )
    if too_deep(payload, value):
        raise _too_deep()
    return value


def too_deep(payload: bytes, value: dict[str, Any]) -> bool:
    """Return whether ``value``, which was parsed from ``payload``, is nested deeper than
    ``MAX_DEPTH``."""
    # Depth can't exceed the number of opening brackets; counting those first is one pass in C
    # and spares nearly every request the walk.
    return payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and _is_deep(value)


def json_type(value: object) -> str:
    """Return what JSON calls the type of a parsed value, with an article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


async def _read(request: web.Request, limit_bytes: int, share: ByteShare) -> bytes:
    pieces: list[bytes] = []
    size_bytes = 0
    async for piece in decoded(request.content, encoding_of(request), limit_bytes):
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        share.grow(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def _check_content_type(request: web.Request) -> None:
    """Refuse what a form of a web page could have sent: a page needs nobody's permission to send
    forms anywhere, and a browser asks lmx first for whatever says that it is JSON. Other programs
    need not name what they send: Ollama's own examples and LiteLLM don't."""
    # aiohttp would take a body without a content type for an octet-stream.
    given = request.content_type if "Content-Type" in request.headers else None
    if given == "application/json" or (given or "").endswith("+json"):
        return
    if not is_of_browser(request) and not (given or "").startswith("multipart/"):
        return
    found = "and the request has none" if given is None else f"not {given!r}"
    raise RequestError(
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        f"The body must be sent with Content-Type: application/json, {found}.",
    )


def _is_deep(value: dict[str, Any]) -> bool:
    # Level by level and not by recursion, because the depth is what we must check.
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _describe(payload: bytes, fault: str) -> str:
    if fault.startswith("recursion limit"):
        return _too_deep().message
    if not payload.strip():
        return "The request body is empty; it must be a JSON object."
    if payload.startswith(_BOM):
        return "The request body begins with a byte order mark: send it without one."
    if duplicate := _DUPLICATE.fullmatch(fault):
        key, place = duplicate.groups()
        return f'The key "{key[:_KEY_SHOWN]}" is there twice in one object ({place}): send it once.'
    try:
        payload.decode()
    except UnicodeDecodeError as decoding:
        return f"The request body is not UTF-8: bad byte at position {decoding.start}."
    if "hex escape" in fault:
        fault = f"half of a surrogate pair, or a bad escape: {fault}"
    return f"The request body is not valid JSON: {fault[:200]}."


def _too_deep() -> RequestError:
    return RequestError(
        ErrorCode.INVALID_JSON, f"The request body is nested deeper than {MAX_DEPTH} levels."
    )


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        ErrorCode.REQUEST_TOO_LARGE,
        f"The request body is larger than the limit of {limit_bytes} bytes.",
    )
