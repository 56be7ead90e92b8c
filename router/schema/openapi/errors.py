"""Which errors a route can return, for its description."""

from __future__ import annotations

from typing import Final

from lmx.protocol.errors import ErrorCode
from lmx.router.http.endpoint import Access, Endpoint

_ALWAYS: Final = (
    ErrorCode.MALFORMED_REQUEST,
    ErrorCode.HEADERS_TOO_LARGE,
    ErrorCode.HOST_NOT_ALLOWED,
    ErrorCode.INTERNAL,
)
_CLOSING: Final = (ErrorCode.SHUTTING_DOWN, ErrorCode.ROUTER_HUNG)
_KEY: Final = (ErrorCode.INVALID_AUTHENTICATION,)
_ADMIN_KEY: Final = (*_KEY, ErrorCode.PERMISSION_DENIED)
_BODY: Final = (
    ErrorCode.INVALID_JSON,
    ErrorCode.QUEUE_FULL,
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.REQUEST_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)
_VALUES: Final = (
    ErrorCode.INVALID_TYPE,
    ErrorCode.INVALID_VALUE,
    ErrorCode.MISSING_PARAMETER,
    ErrorCode.UNSUPPORTED_VALUE,
)
_WORK: Final = (
    ErrorCode.CHAT_TEMPLATE_FAILED,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    ErrorCode.CONVERSION_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.DOWNLOAD_FAILED,
    ErrorCode.ENGINE_ERROR,
    ErrorCode.INSUFFICIENT_DISK,
    ErrorCode.INSUFFICIENT_MEMORY,
    ErrorCode.MODEL_DRAINED,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.MODEL_LOADING,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.MODEL_QUARANTINED,
    ErrorCode.MODEL_SOURCE_INVALID,
    ErrorCode.MODEL_UNLOADED,
    ErrorCode.QUEUE_FULL,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.REQUEST_CANCELLED,
    ErrorCode.SUPERVISOR_UNAVAILABLE,
    ErrorCode.WORKER_CRASHED,
    ErrorCode.WORKER_HUNG,
    ErrorCode.WORKER_KILLED,
    ErrorCode.WORKER_LOST,
    ErrorCode.WORKER_OUT_OF_MEMORY,
)
_GENERATION: Final = (
    ErrorCode.SCHEMA_NOT_MET,
    ErrorCode.STRUCTURE_NOT_ENFORCEABLE,
    ErrorCode.SYNC_TIMEOUT,
)


def error_codes(endpoint: Endpoint) -> frozenset[ErrorCode]:
    """Return the errors with which an endpoint may refuse or fail: those that follow from its kind,
    and those that it names itself (``errors``)."""
    codes = {*_ALWAYS, *_CLOSING, *endpoint.errors}
    if endpoint.method != "GET":
        codes.add(ErrorCode.ORIGIN_NOT_ALLOWED)
    if endpoint.is_inference:
        codes.add(ErrorCode.RATE_LIMIT_EXCEEDED)
    if endpoint.access is Access.INFERENCE:
        codes.update(_KEY)
    elif endpoint.access is not Access.OPEN:
        codes.update(_ADMIN_KEY)
    if endpoint.access is not Access.ADMIN and not endpoint.quiet:
        codes.add(ErrorCode.QUEUE_FULL)
    if endpoint.access in (Access.ADMIN, Access.INFERENCE):
        codes.update((ErrorCode.SUPERVISOR_UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED))
    if endpoint.request is not None or endpoint.form is not None:
        codes.update((*_BODY, *_VALUES))
        if endpoint.access is Access.INFERENCE:
            codes.update(_WORK)
            if endpoint.streams and endpoint.request is not None:
                codes.update(_GENERATION)
    if endpoint.query is not None:
        codes.update(_VALUES)
    if "{" in endpoint.path:
        codes.add(ErrorCode.NOT_FOUND)
    return frozenset(codes)
