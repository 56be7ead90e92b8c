"""Keeps the bodies of the last requests, redacted, where an operator has switched that on."""

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import web

_MOST_BYTES: Final = 64 * 1024 * 1024
"""The most that all bodies may have together."""

_MOST_BYTES_EACH: Final = 1024 * 1024
"""The most that one body may have once it is redacted."""

_MOST_VALUES: Final = 20_000
"""A body of more values is not captured: redacting them would hold up the event loop."""

_DATA_URL: Final = re.compile(r"data:([\w.+-]{1,60}/[\w.+-]{1,60})?(?:;[^,\s]{0,100})?,")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_=\r\n-]+")
_LEAST_BASE64: Final = 512
"""A text of so many characters without a space is a file and no language."""

_FILE_FIELDS: Final = frozenset({"b64_json", "data", "file_data", "images"})
"""Where the APIs have the content of a file as base64."""

_SECRET: Final = re.compile(
    r"authorization|cookie|password|secret|credential|(api|access|private|admin)[-_]?key"
    r"|(access|auth|bearer|refresh|id)[-_]?token",
    re.IGNORECASE,
)

REDACTED: Final = "[redacted]"


@dataclass(frozen=True, slots=True)
class Captured:
    """The body of one request."""

    path: str
    body: bytes | None
    """It as JSON, redacted. None: it is too large."""


CAPTURED: Final = web.RequestKey("captured", Captured)
"""A request carries this from when its body was read, if bodies are captured."""


class Captures:
    """The bodies of the last requests, in memory alone. ``most`` is how many are kept; 0: none,
    and no body is looked at."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[str, Captured] = OrderedDict()
        self._size_bytes = 0

    def take(self, request: web.Request, body: dict[str, Any]) -> None:
        """Redact a request's body, for when it becomes known by what id it is listed."""
        if self.most:
            request[CAPTURED] = Captured(request.path, redacted(body))

    def keep(self, live_id: str, request: web.Request) -> bool:
        """Keep what was taken of a request under the id by which it is listed; return whether there
        was something. The oldest bodies are dropped where there are too many."""
        captured = request.pop(CAPTURED, None)
        if captured is None:
            return False
        self._kept[live_id] = captured
        self._size_bytes += len(captured.body or b"")
        while len(self._kept) > self.most or self._size_bytes > _MOST_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._size_bytes -= len(dropped.body or b"")
        return True

    def get(self, live_id: str) -> Captured | None:
        """Return the body of a request; None if it was not kept, or is not any more."""
        return self._kept.get(live_id)


CAPTURES: Final = web.AppKey("captures", Captures)
"""The bodies that the application has captured."""


def redacted(body: dict[str, Any]) -> bytes | None:
    """Return a body as JSON without the content of files, in whose place there is
    ``[TYPE, N characters]``, and without what is named as a key or password is. Texts stay: they
    are what the body was captured for. None: it has too many values, or is too large even so."""
    left = _MOST_VALUES

    def cleaned(value: Any, *, is_file: bool = False) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooLargeError
        if isinstance(value, str):
            return _without_file(value, is_file=is_file)
        if isinstance(value, list):
            return [cleaned(one, is_file=is_file) for one in value]
        if isinstance(value, dict):
            return {
                name: REDACTED
                if isinstance(one, str | list) and _SECRET.search(name)
                else cleaned(one, is_file=name in _FILE_FIELDS)
                for name, one in value.items()
            }
        return value

    try:
        made = orjson.dumps(cleaned(body))
    # orjson takes no number of more than 64 bits. Bodies may be nested 1,000 levels deep.
    except (_TooLargeError, TypeError, RecursionError):
        return None
    return made if len(made) <= _MOST_BYTES_EACH else None


class _TooLargeError(Exception):
    pass


def _without_file(text: str, *, is_file: bool) -> str:
    found = _DATA_URL.match(text)
    if found is not None:
        return f"[{found[1] or 'data'}, {len(text) - found.end()} characters]"
    least = 1 if is_file else _LEAST_BASE64
    if len(text) >= least and _BASE64.fullmatch(text, 0, _LEAST_BASE64) is not None:
        return f"[base64, {len(text)} characters]"
    return text
