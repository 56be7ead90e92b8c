"""Asks a model over the HTTP API of an lmx, and yields what comes."""

import contextlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import quote

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.sockets.http_client import UNREADABLE, HttpClient, Remote, reported_error

_READ_S: Final = 900.0
"""A stream that is quiet sends comments all the time, and an lmx that is configured to send them
seldom may load a large model meanwhile."""
_LIST_S: Final = 30.0
_RESTARTED: Final = (ErrorCode.INVALID_AUTHENTICATION, ErrorCode.NOT_RUNNING)
"""Errors before an answer begins, of an lmx that has been restarted."""


class PieceKind(Enum):
    """What came of a model."""

    TEXT = "text"
    REASONING = "reasoning"
    WAITING = "waiting"
    """What lmx says while the request waits, as that the model is being loaded."""
    END = "end"
    """No more text comes; ``facts`` are there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer, as it came."""

    kind: PieceKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of an END: the ``finish_reason`` of the answer, or its ``usage`` and ``timings``."""


class ChatClient:
    """Sends conversations, one at a time. ``renewed`` finds the lmx again that was restarted since:
    its key for this machine is another one then, and its port may be."""

    def __init__(self, remote: Remote, renewed: Callable[[], Remote] | None = None) -> None:
        self.remote = remote
        self._renewed = renewed
        self._http = HttpClient(remote, _READ_S)

    def models(self) -> list[dict[str, Any]]:
        """Return the models as GET /v1/models lists them. Raises :class:`OperationError`."""
        found = self._http.call("GET", "/v1/models", limit_s=_LIST_S)
        try:
            return list(found["data"])
        except UNREADABLE as error:
            raise self._http.not_lmx(str(found)) from error

    def model(self, name: str) -> Any:
        """Return the model that requests for a name are answered by now. Raises
        :class:`OperationError` (model_not_found)."""
        return self._http.call("GET", f"/v1/models/{quote(name)}", limit_s=_LIST_S)

    def default_model(self) -> str | None:
        """Return the id of the model that answers requests which name none. Raises
        :class:`OperationError`."""
        found = self._http.call("GET", "/v1/chat/models", limit_s=_LIST_S)
        try:
            return next((str(each["name"]) for each in found if each["default"]), None)
        except UNREADABLE as error:
            raise self._http.not_lmx(str(found)) from error

    def answer(
        self, model: str, messages: Sequence[dict[str, Any]], **parameters: Any
    ) -> Generator[Piece, None, None]:
        """Yield the answer as it comes. The request ends when the iterator is closed. The
        parameters are those of POST /v1/chat/completions.

        Raises :class:`OperationError` with what lmx says, if it can't be reached, or if the stream
        ends without an end.
        """
        body = {
            **parameters, "model": model, "messages": list(messages), "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        try:
            yield from self._streamed(body)
        except OperationError as error:
            if self._renewed is None or error.code not in _RESTARTED:
                raise
            self.remote = self._renewed()
            self._http = HttpClient(self.remote, _READ_S)
            yield from self._streamed(body)

    def _streamed(self, body: Mapping[str, Any]) -> Generator[Piece, None, None]:
        with contextlib.closing(self._http.stream("POST", "/v1/chat/completions", body)) as lines:
            for line in lines:
                if line.startswith(":"):
                    if (comment := line[1:].strip()) and comment != "ping":
                        yield Piece(PieceKind.WAITING, comment)
                    continue
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                try:
                    pieces = _pieces_of(json.loads(data))
                except UNREADABLE as error:
                    raise self._http.not_lmx(data) from error
                yield from pieces
        raise OperationError(
            ErrorCode.SUPERVISOR_UNAVAILABLE,
            f"the connection to {self._http.remote.url} was lost: see `lmx status`",
        )


def _pieces_of(event: Any) -> list[Piece]:
    """Return the pieces of an event. Raises what a value of another form raises, and
    :class:`OperationError` for an error that is reported."""
    if "error" in event:
        raise reported_error(event["error"])
    pieces = []
    for choice in event["choices"]:
        delta = choice.get("delta") or {}
        for kind, names in _NAMES.items():
            if text := next(filter(None, map(delta.get, names)), ""):
                pieces.append(Piece(kind, str(text)))
        if reason := choice.get("finish_reason"):
            pieces.append(Piece(PieceKind.END, "", {"finish_reason": reason}))
    if isinstance(event.get("usage"), dict) and isinstance(event.get("timings"), dict):
        facts = {"usage": event["usage"], "timings": event["timings"]}
        pieces.append(Piece(PieceKind.END, "", facts))
    return pieces


_NAMES: Final = {
    PieceKind.REASONING: ("reasoning_content", "reasoning"),
    PieceKind.TEXT: ("content",),
}
