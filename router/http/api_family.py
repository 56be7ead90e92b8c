"""What the routes of one API family have in common besides their answers: errors and pings.

A route's entry in the table names its family (:class:`lmx.router.http.endpoint.Endpoint`). The
answers themselves are written by an :class:`lmx.router.rendering.answer_format.AnswerFormat`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from pydantic import Field

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.keys import KeyFamily
from lmx.router.http.errors import ErrorType, error_type, http_status, shown_message
from lmx.router.http.responses import Answer

AnthropicErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "overloaded_error",
    "timeout_error",
    "api_error",
]
_ANTHROPIC_TYPES: Final[dict[int, AnthropicErrorType]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's kind of error for a status."""

_ANTHROPIC_REST: Final[dict[bool, AnthropicErrorType]] = {
    False: "invalid_request_error",
    True: "api_error",
}
"""The same for all other statuses, by whether they are 5xx."""


_ANTHROPIC_DETAILS: Final = {
    "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
}
"""What Anthropic's libraries look for in the error of a field that is not supported: they continue
without it then."""


_TOO_LONG: Final = "prompt is too long"
"""What Anthropic's clients look for in an error's message: they make the conversation shorter
then."""

_LENGTHS: Final = re.compile(r"(\d+) tokens\b.*?(\d+)(?: tokens\b|:)")
"""How long a prompt is and may be, in the words of a worker."""


def named_event(data: Mapping[str, Any]) -> bytes:
    """Return an event whose name is also its data's ``type``."""
    name: str = data["type"]
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def comment_line(text: str) -> bytes:
    """Return one line that the clients of server-sent events skip and that people may read."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"


_EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


class ErrorObject(Answer):
    """What went wrong."""

    message: str
    """What went wrong and what to do next, for people."""
    type: ErrorType
    """The kind of error."""
    param: str | None
    """The path of the field at fault (`messages[2].content`), where one is."""
    code: Annotated[ErrorCode, Field(strict=False)]
    """What went wrong, for programs."""
    job_id: NotRequired[str | None]
    """It is there with `sync_timeout`: the job continues, and has the answer when it has ended."""


class Error(Answer):
    """Every answer that is not well."""

    error: ErrorObject
    """What went wrong."""


class AnthropicErrorObject(Answer):
    """What went wrong."""

    type: AnthropicErrorType
    """The kind of error, by its status."""
    message: str
    """What went wrong and what to do next, for people."""
    code: Annotated[ErrorCode, Field(strict=False)]
    """What went wrong, for programs."""
    param: NotRequired[str | None]
    """The path of the field at fault, where one is."""
    details: NotRequired[dict[str, Any] | None]
    """It is there where Anthropic's libraries continue by themselves without a field."""
    job_id: NotRequired[str | None]
    """It is there with `sync_timeout`: the job continues, and has the answer when it has ended."""


class AnthropicError(Answer):
    """Every answer of the Messages API that is not well; those of all other routes too, with the
    header `anthropic-version`."""

    type: Literal["error"]
    """It is always the same."""
    error: AnthropicErrorObject
    """What went wrong."""
    request_id: NotRequired[str | None]
    """The request's id, as in the headers; also where the error ends a stream."""


class OllamaError(Answer):
    """Every answer of Ollama's API that is not well."""

    error: str
    """What went wrong and what to do next, for people."""
    code: Annotated[ErrorCode, Field(strict=False)]
    """What went wrong, for programs."""
    param: NotRequired[str | None]
    """The path of the field at fault, where one is."""
    job_id: NotRequired[str | None]
    """It is there with `sync_timeout`: the job continues, and has the answer when it has ended."""


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Where an error is shown."""

    operator: bool = False
    """Whether that is on a route for operators."""
    job_id: str | None = None
    """The id of the job that continues although its request has ended."""
    request_id: str | None = None
    """It is shown where clients look for it in the body."""


_ANYWHERE: Final = ErrorContext()


def openai_error(error: LmxError, context: ErrorContext = _ANYWHERE) -> Error:
    """Return ``{"error": {message, type, param, code}}``, all four keys always."""
    shown: ErrorObject = {
        "message": shown_message(error, operator=context.operator),
        "type": error_type(error.code, operator=context.operator),
        "param": error.param,
        "code": error.code,
    }
    if context.job_id is not None:
        shown["job_id"] = context.job_id
    return {"error": shown}


class ApiFamily:
    """The parts of an API family's language that belong to no answer. Those here are OpenAI's, and
    every route that names no other family has them: its errors, and comments as pings."""

    stream_type: str = _EVENT_STREAM
    """The media type of a stream."""
    ping: bytes = b": ping\n\n"
    """What keeps proxies and clients from giving up on a long silence, and what clients skip: a
    whole event, a comment, or white space. It may come before the first event of an answer."""
    request_id_header: str = "X-Request-Id"
    """The header in which the family's clients look for the request's id."""
    keys: KeyFamily = KeyFamily.OPENAI
    """What a key that is limited to some APIs must name to open the family's routes."""

    def comment(self, text: str) -> bytes:
        """Return a text for people in a form that clients skip; empty where they skip nothing."""
        return comment_line(text)

    def error_body(self, error: LmxError, context: ErrorContext = _ANYWHERE) -> Mapping[str, Any]:
        """Return the body of an error that is sent with an HTTP status."""
        return openai_error(error, context)

    def error_event(self, error: LmxError, request_id: str | None) -> bytes:
        """Return the event that ends a stream in its middle. ``request_id`` is shown where clients
        look for it in the event. Also called from a thread."""
        return b"data: " + orjson.dumps(self.error_body(error)) + b"\n\n"


class ResponsesFamily(ApiFamily):
    """OpenAI's errors, and the event of its Responses API for one that comes before a response
    exists. The writer of a response's events has another one. What a worker calls the messages is
    the input here."""

    def error_body(self, error: LmxError, context: ErrorContext = _ANYWHERE) -> Error:
        body = openai_error(error, context)
        if error.param == "messages":
            body["error"]["param"] = "input"
        return body

    def error_event(self, error: LmxError, request_id: str | None) -> bytes:
        body = self.error_body(error)["error"]
        shown = {name: body[name] for name in ("code", "message", "param")}
        return named_event({"type": "error", **shown, "sequence_number": 0})


class AnthropicFamily(ApiFamily):
    """Anthropic's errors, and its event as pings.

    Source: the "Errors" and "Streaming messages" pages of its API's documentation. Besides the type
    and the message, an error has lmx's code, and the field that it is about.
    """

    ping = named_event({"type": "ping"})
    request_id_header = "Request-Id"
    keys = KeyFamily.ANTHROPIC

    def error_body(self, error: LmxError, context: ErrorContext = _ANYWHERE) -> AnthropicError:
        status = http_status(error.code, operator=context.operator)
        shown: AnthropicErrorObject = {
            "type": _ANTHROPIC_TYPES.get(status, _ANTHROPIC_REST[status >= 500]),
            "message": shown_message(error, operator=context.operator),
            "code": error.code,
        }
        if error.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED:
            shown["message"] = _as_too_long(shown["message"])
        if error.param is not None:
            shown["param"] = error.param
            if error.code is ErrorCode.UNSUPPORTED_VALUE and error.param in _ANTHROPIC_DETAILS:
                shown["details"] = _ANTHROPIC_DETAILS[error.param]
        if context.job_id is not None:
            shown["job_id"] = context.job_id
        body: AnthropicError = {"type": "error", "error": shown}
        if context.request_id is not None:
            body["request_id"] = context.request_id
        return body

    def error_event(self, error: LmxError, request_id: str | None) -> bytes:
        return named_event(self.error_body(error, ErrorContext(request_id=request_id)))


def _as_too_long(message: str) -> str:
    lengths = _LENGTHS.search(message)
    words = f": {lengths[1]} tokens > {lengths[2]} maximum" if lengths else ""
    return f"{_TOO_LONG}{words}. {message}"


class OllamaFamily(ApiFamily):
    """Ollama's errors. Its streams are lines of JSON, all of which its clients read. They skip
    nothing but white space at the beginning of a line, which is part of JSON: so a space is the
    ping, and comments can't be sent.

    Source: the "Errors" page of its documentation. Besides the message an error has lmx's code, and
    the field that it is about.
    """

    stream_type = "application/x-ndjson"
    ping = b" "
    keys = KeyFamily.OLLAMA

    def comment(self, text: str) -> bytes:
        return b""

    def error_body(self, error: LmxError, context: ErrorContext = _ANYWHERE) -> OllamaError:
        message = shown_message(error, operator=context.operator)
        shown: OllamaError = {"error": message, "code": error.code}
        if error.param is not None:
            shown["param"] = error.param
        if context.job_id is not None:
            shown["job_id"] = context.job_id
        return shown

    def error_event(self, error: LmxError, request_id: str | None) -> bytes:
        return orjson.dumps(self.error_body(error)) + b"\n"


OPENAI: Final = ApiFamily()
RESPONSES: Final = ResponsesFamily()
ANTHROPIC: Final = AnthropicFamily()
OLLAMA: Final = OllamaFamily()

ERROR_BODIES: Final[dict[ApiFamily, type[Any]]] = {
    OPENAI: Error,
    RESPONSES: Error,
    ANTHROPIC: AnthropicError,
    OLLAMA: OllamaError,
}
"""The shape of each family's errors."""
