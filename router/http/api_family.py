"""What the routes of one API family have in common besides their answers: errors and pings.

A route's entry in the table names its family (:class:`lmx.router.http.endpoint.Endpoint`). The
answers themselves are written by an :class:`lmx.router.rendering.answer_format.AnswerFormat`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import orjson

from lmx.protocol.errors import LmxError
from lmx.router.http.errors import error_type


class ApiFamily(Protocol):
    """The parts of an API family's language that belong to no answer."""

    @property
    def ping(self) -> bytes:
        """A whole event, or comment, that keeps proxies and clients from giving up on a long
        silence and that clients skip. It may come before the first event of an answer."""

    def error_body(
        self, error: LmxError, *, operator: bool = False, job_id: str | None = None
    ) -> dict[str, Any]:
        """Return the body of an error that is sent with an HTTP status. ``operator`` is true on a
        route for operators. ``job_id`` is the id of the job that goes on although its request has
        ended."""

    def error_event(self, error: LmxError) -> bytes:
        """Return the event that ends a stream in its middle. Also called from a thread."""


class OpenAiFamily:
    """OpenAI's errors, and comments as pings. Every route that names no other family has this
    one."""

    ping: Final = b": ping\n\n"

    def error_body(
        self, error: LmxError, *, operator: bool = False, job_id: str | None = None
    ) -> dict[str, Any]:
        """Return ``{"error": {message, type, param, code}}``, all four keys always."""
        shown = {
            "message": error.message,
            "type": error_type(error.code, operator=operator),
            "param": error.param,
            "code": error.code.value,
        }
        return {"error": shown if job_id is None else {**shown, "job_id": job_id}}

    def error_event(self, error: LmxError) -> bytes:
        """Return an error as the event that ends a stream which has begun."""
        return b"data: " + orjson.dumps(self.error_body(error)) + b"\n\n"


OPENAI: Final = OpenAiFamily()
