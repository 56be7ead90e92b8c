"""The only table from an ``ErrorCode`` to what an HTTP client sees of it.

The body of an error is written by its API family (:mod:`lmx.router.http.api_family`).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.router.http.local_paths import without_paths

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
]
_REQUEST: Final = "invalid_request_error"
_NOT_FOUND: Final = "not_found_error"
_AUTHENTICATION: Final = "authentication_error"
_PERMISSION: Final = "permission_error"
_RATE: Final = "rate_limit_error"
_SERVER: Final = "server_error"

_TABLE: Final[dict[ErrorCode, tuple[int, ErrorType]]] = {
    ErrorCode.INVALID_JSON: (400, _REQUEST),
    ErrorCode.MISSING_PARAMETER: (400, _REQUEST),
    ErrorCode.INVALID_TYPE: (400, _REQUEST),
    ErrorCode.INVALID_VALUE: (400, _REQUEST),
    ErrorCode.UNSUPPORTED_VALUE: (400, _REQUEST),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: (400, _REQUEST),
    # The template belongs to the model, but other requests get through it: this one never would.
    ErrorCode.CHAT_TEMPLATE_FAILED: (400, _REQUEST),
    ErrorCode.MALFORMED_REQUEST: (400, _REQUEST),
    ErrorCode.HEADERS_TOO_LARGE: (431, _REQUEST),
    ErrorCode.REQUEST_TIMEOUT: (408, _REQUEST),
    ErrorCode.REQUEST_TOO_LARGE: (413, _REQUEST),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: (415, _REQUEST),
    # An image, a sound or a video that can't be decoded, or that its address does not give.
    ErrorCode.INVALID_MEDIA: (400, _REQUEST),
    ErrorCode.MEDIA_NOT_FETCHED: (400, _REQUEST),
    ErrorCode.MEDIA_TOO_LARGE: (413, _REQUEST),
    # It takes too long to fetch or to decode, and may be faster next time.
    ErrorCode.MEDIA_TIMEOUT: (504, _SERVER),
    ErrorCode.INVALID_AUTHENTICATION: (401, _AUTHENTICATION),
    ErrorCode.PERMISSION_DENIED: (403, _PERMISSION),
    ErrorCode.HOST_NOT_ALLOWED: (403, _PERMISSION),
    ErrorCode.ORIGIN_NOT_ALLOWED: (403, _PERMISSION),
    ErrorCode.MODEL_NOT_FOUND: (404, _REQUEST),
    ErrorCode.NOT_FOUND: (404, _NOT_FOUND),
    # OpenAI's status.
    ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND: (400, _REQUEST),
    ErrorCode.METHOD_NOT_ALLOWED: (405, _REQUEST),
    ErrorCode.RATE_LIMIT_EXCEEDED: (429, _RATE),
    ErrorCode.QUEUE_FULL: (429, _RATE),
    ErrorCode.QUEUE_TIMEOUT: (503, _SERVER),
    ErrorCode.MODEL_LOADING: (503, _SERVER),
    ErrorCode.MODEL_QUARANTINED: (503, _SERVER),
    ErrorCode.MODEL_LOAD_FAILED: (503, _SERVER),
    ErrorCode.MODEL_UNLOADED: (503, _SERVER),
    ErrorCode.MODEL_DRAINED: (503, _SERVER),
    ErrorCode.INSUFFICIENT_MEMORY: (503, _SERVER),
    ErrorCode.SUPERVISOR_UNAVAILABLE: (503, _SERVER),
    ErrorCode.PEER_UNAVAILABLE: (503, _SERVER),
    ErrorCode.SHUTTING_DOWN: (503, _SERVER),
    # A crash, a hang or an engine error may be the doing of this very request, so no
    # Retry-After invites it back; a kill or a lost worker has nothing to do with it.
    ErrorCode.WORKER_CRASHED: (500, _SERVER),
    ErrorCode.WORKER_HUNG: (500, _SERVER),
    ErrorCode.WORKER_KILLED: (503, _SERVER),
    ErrorCode.WORKER_LOST: (503, _SERVER),
    ErrorCode.ROUTER_HUNG: (503, _SERVER),
    ErrorCode.PEER_LOST: (503, _SERVER),
    ErrorCode.WORKER_OUT_OF_MEMORY: (503, _SERVER),
    ErrorCode.ENGINE_ERROR: (500, _SERVER),
    ErrorCode.SCHEMA_NOT_MET: (500, _SERVER),
    # What the request asks for turned out to be too much in the middle of the answer.
    ErrorCode.STRUCTURE_NOT_ENFORCEABLE: (400, _REQUEST),
    ErrorCode.DEADLINE_EXCEEDED: (504, _SERVER),
    ErrorCode.SYNC_TIMEOUT: (504, _SERVER),
    ErrorCode.REQUEST_CANCELLED: (409, _REQUEST),
    ErrorCode.CLIENT_STALLED: (408, _REQUEST),
    # It stands only in a job's record, since no client is left to see it. The number is nginx's.
    ErrorCode.CLIENT_DISCONNECTED: (499, _REQUEST),
    ErrorCode.JOB_INTERRUPTED: (503, _SERVER),
    ErrorCode.JOB_RUNS_ELSEWHERE: (409, _REQUEST),
    ErrorCode.JOBS_UNAVAILABLE: (503, _SERVER),
    ErrorCode.USAGE_UNAVAILABLE: (503, _SERVER),
    ErrorCode.BATCH_ENDED: (409, _REQUEST),
    ErrorCode.FILES_UNAVAILABLE: (503, _SERVER),
    ErrorCode.KEY_EXISTS: (409, _REQUEST),
    ErrorCode.KEY_CONFIGURED: (409, _REQUEST),
    ErrorCode.MODEL_SOURCE_INVALID: (503, _SERVER),
    ErrorCode.DOWNLOAD_FAILED: (503, _SERVER),
    ErrorCode.CONVERSION_FAILED: (503, _SERVER),
    ErrorCode.INSUFFICIENT_DISK: (503, _SERVER),
    ErrorCode.MODEL_EXISTS: (409, _REQUEST),
    ErrorCode.MODEL_CONFIGURED: (409, _REQUEST),
    ErrorCode.MODEL_LOADED: (409, _REQUEST),
    ErrorCode.NOT_DELETABLE: (409, _REQUEST),
    ErrorCode.CONFIG_INVALID: (400, _REQUEST),
    ErrorCode.ALREADY_RUNNING: (409, _REQUEST),
    ErrorCode.ADDRESS_UNAVAILABLE: (409, _REQUEST),
    ErrorCode.NOT_RUNNING: (409, _REQUEST),
    ErrorCode.MODEL_NOT_LOADED: (409, _REQUEST),
    ErrorCode.PROTOCOL_ERROR: (500, _SERVER),
    ErrorCode.INTERNAL: (500, _SERVER),
}

_FOR_OPERATORS: Final[dict[ErrorCode, tuple[int, ErrorType]]] = {
    # Who asks for a model by name on an inference route can't help what it needs; who loads it
    # can, and gets the reason for an answer.
    ErrorCode.INSUFFICIENT_MEMORY: (507, _SERVER),
    ErrorCode.INSUFFICIENT_DISK: (507, _SERVER),
    ErrorCode.MODEL_SOURCE_INVALID: (400, _REQUEST),
}
"""The codes that have another status on the routes for operators."""

_NOT_AGAIN: Final = frozenset(
    {
        # The first one continues: a second one is the same work twice.
        ErrorCode.SYNC_TIMEOUT,
        # May be this very request's doing.
        ErrorCode.WORKER_CRASHED,
        ErrorCode.WORKER_HUNG,
        ErrorCode.ENGINE_ERROR,
        # The model caused it; it was asked twice if nobody had read its first answer.
        ErrorCode.SCHEMA_NOT_MET,
        # It lasts until a person has done something.
        ErrorCode.MODEL_QUARANTINED,
        ErrorCode.MODEL_DRAINED,
        ErrorCode.MODEL_SOURCE_INVALID,
        ErrorCode.CONVERSION_FAILED,
        ErrorCode.INSUFFICIENT_DISK,
    }
)
"""The 5xx errors that a client library must not send again by itself, as OpenAI's libraries do on
every 5xx. The same holds for all 4xx except ``_TIMELY_STATUSES``; of the 4xx those libraries send
409 again."""

_TIMELY_STATUSES: Final = frozenset({408, 429})
"""The 4xx that may pass with time: the request came too slowly, or too many came."""

_RETRY_STATUSES: Final = frozenset({429, 503})
_DEFAULT_RETRY_AFTER_S: Final = 2.0
"""The wait that is advised if nobody knows better: long enough not to hammer the server, short
compared with any model load."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as HTTP shows it, without its body."""

    status: int
    retry_after: str | None
    """The value of the header Retry-After, in whole seconds; None if the answer has no such
    header."""
    not_again: bool
    """Whether no client library should send the request again by itself."""


def http_status(code: ErrorCode, *, operator: bool = False) -> int:
    """Return the HTTP status of a code. ``operator`` is true on a route for operators."""
    return _row(code, operator=operator)[0]


def error_type(code: ErrorCode, *, operator: bool = False) -> ErrorType:
    """Return OpenAI's kind of error for a code. ``operator`` is true on a route for operators."""
    return _row(code, operator=operator)[1]


def shown_message(error: LmxError, *, operator: bool = False) -> str:
    """Return the message of an error as a client gets it. ``operator`` is true on a route for
    operators: only they see the paths of this machine. What is wrong with a request itself has no
    such paths."""
    own = operator or http_status(error.code) < 500
    return error.message if own else without_paths(error.message)


def http_error(error: LmxError, *, operator: bool = False) -> HttpError:
    """Return the status and Retry-After of an error. ``operator`` is true on a route for operators.

    Retry-After is there whenever the error says when to come back, and on every 429 and 503 that
    may pass by itself.
    """
    status = http_status(error.code, operator=operator)
    not_again = error.final or error.code in _NOT_AGAIN or _is_the_requests_own(status)
    wait_s = None if error.final else error.retry_after_s
    if wait_s is None and status in _RETRY_STATUSES and not not_again:
        wait_s = _DEFAULT_RETRY_AFTER_S
    retry_after = None if wait_s is None else str(max(1, math.ceil(wait_s)))
    return HttpError(status, retry_after, not_again)


def _is_the_requests_own(status: int) -> bool:
    return 400 <= status < 500 and status not in _TIMELY_STATUSES


def _row(code: ErrorCode, *, operator: bool) -> tuple[int, ErrorType]:
    return (operator and _FOR_OPERATORS.get(code)) or _TABLE[code]


def internal_error(request_id: str) -> LmxError:
    """Return the error for a bug."""
    return LmxError(
        ErrorCode.INTERNAL,
        f"An internal error occurred. The log has the details under request id {request_id}.",
    )


def rejection(
    code: ErrorCode,
    message: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
    final: bool = False,
) -> LmxError:
    """Return the exception for a refusal that came over the wire before any output.

    A 4xx other than 429 is the request's own fault; any other refusal may pass with time.
    """
    status = http_status(code)
    kind = RequestError if 400 <= status < 500 and status != 429 else UnavailableError
    return kind(code, message, param=param, retry_after_s=retry_after_s, final=final)
