"""Asks a model over the HTTP API of the lmx that runs on this machine, and yields what comes."""

import http.client
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

from lmx.protocol.errors import ErrorCode, OperationError

_READ_S: Final = 900.0
"""A stream that is quiet sends comments all the time, and an lmx that is configured to send them
seldom may load a large model meanwhile."""

_LONGEST_LINE_BYTES: Final = 16 * 1024**2
_SHOWN_LETTERS: Final = 60


class PieceKind(Enum):
    """What came of a model."""

    TEXT = "text"
    REASONING = "reasoning"
    WAITING = "waiting"
    """What lmx says while the request waits, as that the model is being loaded."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer, as it came."""

    kind: PieceKind
    text: str


class ChatClient:
    """Sends conversations, one at a time."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self._base_url = base_url
        self._api_key = api_key

    def answer(
        self, model: str, messages: Sequence[dict[str, Any]]
    ) -> Generator[Piece, None, None]:
        """Yield the answer as it comes. The request ends when the iterator is closed.

        Raises :class:`OperationError` with what lmx says, or if it can't be reached.
        """
        place = urlsplit(self._base_url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_READ_S)
        body = {"model": model, "messages": list(messages), "stream": True}
        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            connection.request(
                "POST", f"{place.path}/chat/completions", json.dumps(body).encode(), headers
            )
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise _refused(response.read(_LONGEST_LINE_BYTES), response.status)
            yield from _pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise OperationError(
                ErrorCode.SUPERVISOR_UNAVAILABLE,
                f"the connection to {self._base_url} was lost ({error or type(error).__name__}): "
                "see `lmx status`",
            ) from error
        finally:
            connection.close()


def _pieces(response: http.client.HTTPResponse) -> Generator[Piece, None, None]:
    """Yield the pieces of an event stream. Raises :class:`OperationError` if it ends with an error,
    or without an end."""
    while line := response.readline(_LONGEST_LINE_BYTES):
        text = line.decode("utf-8", "replace").strip()
        if text.startswith(":"):
            if (comment := text[1:].strip()) and comment != "ping":
                yield Piece(PieceKind.WAITING, comment)
            continue
        if not text.startswith("data:"):
            continue
        data = text.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            pieces = _pieces_of(json.loads(data))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise OperationError(
                ErrorCode.PROTOCOL_ERROR,
                f"the stream has an invalid event ({data[:_SHOWN_LETTERS]}): is it lmx that "
                "answers there?",
            ) from error
        yield from pieces
    raise http.client.IncompleteRead(b"")


def _pieces_of(event: Any) -> list[Piece]:
    """Return the pieces of an event. Raises what a value of another form raises, and
    :class:`OperationError` for an error that is reported."""
    if "error" in event:
        raise _error(event["error"])
    pieces = []
    for choice in event["choices"]:
        delta = choice.get("delta") or {}
        for kind, names in _NAMES.items():
            if text := next(filter(None, map(delta.get, names)), ""):
                pieces.append(Piece(kind, str(text)))
    return pieces


_NAMES: Final = {
    PieceKind.REASONING: ("reasoning_content", "reasoning"),
    PieceKind.TEXT: ("content",),
}


def _refused(body: bytes, status: int) -> OperationError:
    try:
        return _error(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return OperationError(ErrorCode.INTERNAL, f"lmx answered with the status {status}")


def _error(reported: dict[str, Any]) -> OperationError:
    try:
        code = ErrorCode(str(reported.get("code")))
    except ValueError:
        code = ErrorCode.INTERNAL
    return OperationError(code, str(reported.get("message") or code.value))
