"""Asks an lmx over its HTTP API: this machine's, or another one's. It blocks, with deadlines.

What speaks HTTP is imported with the first request: most commands, and a supervisor without peers,
send none.
"""

import hashlib
import json
import os
import secrets
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.free_text import terminal_text

if TYPE_CHECKING:
    import http.client

    from lmx.protocol.messages.peers import Peer

_PORT: Final = 8000
_LONGEST_BODY_BYTES: Final = 256 * 1024**2
_LONGEST_LINE_BYTES: Final = 16 * 1024**2
_PIECE_BYTES: Final = 256 * 1024
_SHOWN_LETTERS: Final = 60
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""How versions of OpenSSL call an answer in plain HTTP."""
_NOT_ALLOWED: Final = (ErrorCode.INVALID_AUTHENTICATION, ErrorCode.PERMISSION_DENIED)
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a JSON value of another form than expected raises when it is read."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where an lmx answers over HTTP, and the key for it."""

    url: str
    """Its address without a path of the API and without a slash at the end."""
    key: str | None = field(default=None, repr=False)
    certificate: str = ""
    """The SHA-256 of the only certificate with which it is believed, in hex. Empty: that of an
    ``https`` address must be of an authority."""
    key_words: str = field(
        default="Commands take it from --key KEY or LMX_API_KEY.", repr=False, compare=False
    )
    """Where the key is from, for people, when it is not accepted."""

    @classmethod
    def of(cls, peer: "Peer", key: str | None = None) -> "Remote":
        """Return where a peer answers, with the key for it unless there is another one."""
        return cls(peer.url, key or peer.key or None, peer.certificate)

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
            return self._value(answer)

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

    def upload(self, path: str, fields: Mapping[str, str], file: Path) -> Any:
        """Send a form with a file, piece by piece, and return the JSON value of the answer. Raises
        as :meth:`call` does, INVALID_VALUE for a file that can't be read to its end, and
        ``OSError`` for one that can't be opened."""
        with file.open("rb") as content:
            form = _Form(fields, file.name, content)
            with self._answer("POST", path, form, None, {}, None) as answer:
                return self._value(answer)

    def download(self, path: str, to: BinaryIO) -> None:
        """Write the bytes of an answer to ``to``, piece by piece. Raises as :meth:`call` does, and
        the ``OSError`` of ``to``."""
        with closing(self._pieces(path)) as pieces:
            for piece in pieces:
                to.write(piece)

    def _pieces(self, path: str) -> Generator[bytes, None, None]:
        # What the caller does with a piece happens outside: its errors are not the connection's.
        with self._answer("GET", path, None, None, {}, None) as answer:
            while piece := answer.read(_PIECE_BYTES):
                yield piece
            _check_whole(answer)

    def not_lmx(self, text: str | bytes) -> OperationError:
        """Return the error for an answer that is not lmx's."""
        shown = text[:_SHOWN_LETTERS] if isinstance(text, str) else text.decode("utf-8", "replace")
        return OperationError(
            ErrorCode.PROTOCOL_ERROR,
            f"{self.remote.url} gave an answer that is invalid ({shown[:_SHOWN_LETTERS]}): is it "
            "lmx that answers there, of this version?",
        )

    def _value(self, answer: "http.client.HTTPResponse") -> Any:
        text = answer.read(_LONGEST_BODY_BYTES)
        if len(text) < _LONGEST_BODY_BYTES:
            _check_whole(answer)
        try:
            return json.loads(text)
        except UNREADABLE as error:
            raise self.not_lmx(text) from error

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: "Mapping[str, Any] | _Form | None",
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        limit_s: float | None,
    ) -> "Iterator[http.client.HTTPResponse]":
        import http.client

        place = urlsplit(self.remote.url)
        connection = self._connection(place, limit_s or self._limit_s)
        sent = {"Accept": "application/json, text/event-stream", **headers}
        data: bytes | Iterator[bytes] | None = None
        if isinstance(body, _Form):
            data, sent["Content-Type"] = body.pieces(), body.content_type
            sent["Content-Length"] = str(body.size_bytes)
        elif body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        if self.remote.key is not None:
            sent["Authorization"] = f"Bearer {self.remote.key}"
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{place.path}{path}{f'?{urlencode(given)}' if given else ''}"
        try:
            try:
                connection.connect()
                self._check_certificate(connection)
            except (OSError, UnicodeError) as error:
                raise self._unreachable(error) from error
            # A body that is refused is not read to its end: the answer may have come all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
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

    def _connection(self, place: SplitResult, limit_s: float) -> "http.client.HTTPConnection":
        import http.client

        host = place.hostname or ""
        if place.scheme != "https":
            return http.client.HTTPConnection(host, place.port, timeout=limit_s)
        context = None
        if self.remote.certificate:
            context = ssl.create_default_context(capath=os.devnull)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, place.port, timeout=limit_s, context=context)

    def _check_certificate(self, connection: "http.client.HTTPConnection") -> None:
        """Raise :class:`OperationError` (peer_unavailable), before anything is sent, unless the
        certificate is the pinned one."""
        if not self.remote.certificate:
            return
        assert isinstance(connection.sock, ssl.SSLSocket)
        found = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if found != self.remote.certificate:
            raise OperationError(
                ErrorCode.PEER_UNAVAILABLE,
                f"what answers at {self.remote.url} shows another certificate than when the "
                "machines were paired: nothing was sent",
            )

    def _unreachable(self, error: OSError | UnicodeError) -> OperationError:
        reason = str(error)
        if isinstance(error, UnicodeError):
            reason = "a machine can't have that name"
        elif isinstance(error, socket.gaierror):
            reason = "no machine has that name"
        elif isinstance(error, TimeoutError):
            reason = "it does not answer in time"
        elif isinstance(error, ssl.SSLError):
            reason = f"{error.reason or error}"
            if error.reason in _NOT_TLS:
                reason = "what answers there speaks no TLS: try http:// in place of https://"
        elif error.strerror:
            reason = error.strerror
        return OperationError(
            ErrorCode.NOT_RUNNING, f"no lmx can be reached at {self.remote.url}: {reason}"
        )

    def _refused(self, body: bytes, answer: "http.client.HTTPResponse") -> OperationError:
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
            return OperationError(error.code, f"{error.message} {self.remote.key_words}")
        return error


def _check_whole(answer: "http.client.HTTPResponse") -> None:
    """Raise ``ConnectionError`` if the connection ended before the answer did: a read with a limit
    returns what has come, without an error."""
    if answer.length:
        raise ConnectionError(f"{answer.length:,} bytes of the answer are missing")


class _Form:
    """A form with fields and one file."""

    def __init__(self, fields: Mapping[str, str], name: str, content: BinaryIO) -> None:
        boundary = secrets.token_hex(16)
        quoted = name.translate(_QUOTED)
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
            for field, value in fields.items()
        ]
        parts.append(
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._head = "".join(parts).encode("utf-8", "replace")
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._name = name
        self._content = content
        self._content_bytes = os.fstat(content.fileno()).st_size
        self.size_bytes = len(self._head) + self._content_bytes + len(self._tail)

    def pieces(self) -> Iterator[bytes]:
        """Yield the form. A file that grows meanwhile is cut. Raises :class:`OperationError` for
        one that can't be read to its end."""
        yield self._head
        left = self._content_bytes
        while left:
            try:
                piece = self._content.read(min(left, _PIECE_BYTES))
            except OSError as error:
                raise self._unreadable(error.strerror or str(error)) from error
            if not piece:
                raise self._unreadable("it became shorter while it was sent")
            left -= len(piece)
            yield piece
        yield self._tail

    def _unreadable(self, reason: str) -> OperationError:
        return OperationError(ErrorCode.INVALID_VALUE, f"can't read {self._name}: {reason}")


_QUOTED: Final = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}


def reported_error(reported: Mapping[str, Any]) -> OperationError:
    """Return the error of the body of an answer, or of an event. Raises what a value of another
    form raises."""
    try:
        code = ErrorCode(str(reported.get("code")))
    except ValueError:
        code = ErrorCode.INTERNAL
    # Whoever answers at the address wrote it: without what a terminal would obey.
    said = str(reported.get("message") or code.value)
    return OperationError(code, terminal_text(said))
