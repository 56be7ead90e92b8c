"""Asks an lmx over its HTTP API: this machine's, or another one's. It blocks, with deadlines."""

import http.client
import json
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from lmx.protocol.errors import ErrorCode, OperationError

_PORT: Final = 8000
_LONGEST_BODY_BYTES: Final = 256 * 1024**2
_LONGEST_LINE_BYTES: Final = 16 * 1024**2
_SHOWN_LETTERS: Final = 60
_NOT_ALLOWED: Final = (ErrorCode.INVALID_AUTHENTICATION, ErrorCode.PERMISSION_DENIED)
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a JSON value of another form than expected raises when it is read."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where an lmx answers over HTTP, and the key for it."""

    url: str
    """Its address without a path of the API and without a slash at the end."""
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, key: str | None) -> "Remote":
        """Return what a person means: ``studio``, ``studio:8000``, ``https://host/prefix``, with or
        without ``/v1``. Raises :class:`OperationError` (config_invalid)."""
        url = text.strip()
        has_scheme = "://" in url
        try:
            parts = urlsplit(url if has_scheme else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise _not_an_address(text, str(error)) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _not_an_address(text, "it begins with http:// or https://, and a host follows")
        if parts.username is not None or parts.query or parts.fragment:
            raise _not_an_address(text, "it has no user, query or fragment; --key takes the key")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        if port is None and not has_scheme:
            port = _PORT
        path = parts.path.rstrip("/").removesuffix("/v1")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                "the key has a character that no key of lmx has: was it changed on the way, as "
                "by a program that makes quotes and dashes pretty?",
            )
        return cls(f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}", key)


def _not_an_address(text: str, reason: str) -> OperationError:
    return OperationError(
        ErrorCode.CONFIG_INVALID,
        f"{text!r} is not the address of an lmx (such as http://studio:8000): {reason}",
    )


class HttpClient:
    """Sends requests, each over a connection of its own. ``limit_s`` is how long it waits for the
    next bytes."""

    def __init__(self, remote: Remote, limit_s: float) -> None:
        self.remote = remote
        self._limit_s = limit_s

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        limit_s: float | None = None,
    ) -> Any:
        """Return the JSON value of an answer. Raises :class:`OperationError` with what lmx says, or
        if it can't be reached: NOT_RUNNING if nothing answers there."""
        with self._answer(method, path, body, query, {}, limit_s) as answer:
            text = answer.read(_LONGEST_BODY_BYTES)
        try:
            return json.loads(text)
        except UNREADABLE as error:
            raise self.not_lmx(text) from error

    def stream(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[str, None, None]:
        """Yield the lines of an event stream. The request ends when the iterator is closed. Raises
        as :meth:`call` does."""
        with self._answer(method, path, body, query, headers or {}, None) as answer:
            while line := answer.readline(_LONGEST_LINE_BYTES):
                yield line.decode("utf-8", "replace").strip()

    def not_lmx(self, text: str | bytes) -> OperationError:
        """Return the error for an answer that is not lmx's."""
        shown = text[:_SHOWN_LETTERS] if isinstance(text, str) else text.decode("utf-8", "replace")
        return OperationError(
            ErrorCode.PROTOCOL_ERROR,
            f"{self.remote.url} gave an answer that is invalid ({shown[:_SHOWN_LETTERS]}): is it "
            "lmx that answers there, of this version?",
        )

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        limit_s: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        place = urlsplit(self.remote.url)
        secure = place.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=limit_s or self._limit_s)
        sent = {"Accept": "application/json, text/event-stream", **headers}
        data = None
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        if self.remote.key is not None:
            sent["Authorization"] = f"Bearer {self.remote.key}"
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{place.path}{path}{f'?{urlencode(given)}' if given else ''}"
        try:
            try:
                connection.connect()
            except OSError as error:
                raise self._unreachable(error) from error
            connection.request(method, target, data, sent)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise self._refused(answer.read(_LONGEST_LINE_BYTES), answer)
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise OperationError(
                ErrorCode.SUPERVISOR_UNAVAILABLE,
                f"the connection to {self.remote.url} was lost ({error or type(error).__name__}): "
                "see `lmx status`",
            ) from error
        finally:
            connection.close()

    def _unreachable(self, error: OSError) -> OperationError:
        reason = error.strerror or str(error)
        if isinstance(error, socket.gaierror):
            reason = "no machine has that name"
        elif isinstance(error, TimeoutError):
            reason = "it does not answer in time"
        elif isinstance(error, ssl.SSLError):
            reason = f"{error.reason or error}"
        return OperationError(
            ErrorCode.NOT_RUNNING, f"no lmx can be reached at {self.remote.url}: {reason}"
        )

    def _refused(self, body: bytes, answer: http.client.HTTPResponse) -> OperationError:
        if (there := answer.headers.get("Location")) is not None:
            return OperationError(
                ErrorCode.NOT_RUNNING,
                f"{self.remote.url} sends elsewhere: give the address {there[:200]!r} belongs to",
            )
        try:
            error = reported_error(json.loads(body)["error"])
        except UNREADABLE:
            return OperationError(
                ErrorCode.INTERNAL,
                f"{self.remote.url} answered with the status {answer.status}: is it lmx that "
                "answers there?",
            )
        if error.code in _NOT_ALLOWED:
            words = f"{error.message} Commands take it from --key KEY or LMX_API_KEY."
            return OperationError(error.code, words)
        return error


def reported_error(reported: Mapping[str, Any]) -> OperationError:
    """Return the error of the body of an answer, or of an event. Raises what a value of another
    form raises."""
    try:
        code = ErrorCode(str(reported.get("code")))
    except ValueError:
        code = ErrorCode.INTERNAL
    return OperationError(code, str(reported.get("message") or code.value))
