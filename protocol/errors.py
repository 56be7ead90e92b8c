"""Every error that lmx can give: one enum of codes and one tree of exceptions.

A code is stable and machine-readable. Clients see it as ``error.code``. The only table from codes
to HTTP statuses is ``router/http/errors.py``.
"""

from enum import StrEnum

from lmx.protocol.free_text import clamp


class ErrorCode(StrEnum):
    """What went wrong. The values are part of the public contract, so that none may be renamed."""

    # The request itself.
    INVALID_JSON = "invalid_json"
    MISSING_PARAMETER = "missing_required_parameter"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_VALUE = "unsupported_value"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    CHAT_TEMPLATE_FAILED = "chat_template_failed"
    MALFORMED_REQUEST = "malformed_request"
    HEADERS_TOO_LARGE = "headers_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INVALID_MEDIA = "invalid_media"
    MEDIA_NOT_FETCHED = "media_not_fetched"
    MEDIA_TIMEOUT = "media_timeout"
    MEDIA_TOO_LARGE = "media_too_large"
    INVALID_AUTHENTICATION = "invalid_authentication"
    PERMISSION_DENIED = "permission_denied"
    HOST_NOT_ALLOWED = "host_not_allowed"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found_error"
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    # Not now: nothing was produced, and the request can safely be sent again.
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    MODEL_LOADING = "model_loading"
    MODEL_QUARANTINED = "model_quarantined"
    MODEL_LOAD_FAILED = "model_load_failed"
    MODEL_UNLOADED = "model_unloaded"
    MODEL_DRAINED = "model_drained"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    SUPERVISOR_UNAVAILABLE = "supervisor_unavailable"
    PEER_UNAVAILABLE = "peer_unavailable"
    SHUTTING_DOWN = "shutting_down"
    # A generation that had begun was lost.
    WORKER_CRASHED = "worker_crashed"
    WORKER_HUNG = "worker_hung"
    WORKER_KILLED = "worker_killed"
    WORKER_OUT_OF_MEMORY = "worker_out_of_memory"
    WORKER_LOST = "worker_lost"
    ROUTER_HUNG = "router_hung"
    PEER_LOST = "peer_lost"
    ENGINE_ERROR = "engine_error"
    SCHEMA_NOT_MET = "schema_not_met"
    STRUCTURE_NOT_ENFORCEABLE = "structure_not_enforceable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    SYNC_TIMEOUT = "sync_timeout"
    REQUEST_CANCELLED = "request_cancelled"
    CLIENT_STALLED = "client_stalled"
    CLIENT_DISCONNECTED = "client_disconnected"
    # Job records.
    JOB_INTERRUPTED = "job_interrupted"
    JOB_RUNS_ELSEWHERE = "job_runs_elsewhere"
    JOBS_UNAVAILABLE = "jobs_unavailable"
    USAGE_UNAVAILABLE = "usage_unavailable"
    BATCH_ENDED = "batch_ended"
    FILES_UNAVAILABLE = "files_unavailable"
    # Keys.
    KEY_EXISTS = "key_exists"
    KEY_CONFIGURED = "key_configured"
    # Making a model available.
    MODEL_SOURCE_INVALID = "model_source_invalid"
    DOWNLOAD_FAILED = "download_failed"
    CONVERSION_FAILED = "conversion_failed"
    INSUFFICIENT_DISK = "insufficient_disk"
    MODEL_EXISTS = "model_exists"
    MODEL_CONFIGURED = "model_configured"
    MODEL_LOADED = "model_loaded"
    NOT_DELETABLE = "not_deletable"
    # Operating lmx.
    CONFIG_INVALID = "config_invalid"
    ALREADY_RUNNING = "already_running"
    NOT_RUNNING = "not_running"
    ADDRESS_UNAVAILABLE = "address_unavailable"
    MODEL_NOT_LOADED = "model_not_loaded"
    PROTOCOL_ERROR = "protocol_error"
    INTERNAL = "internal_server_error"


class LmxError(Exception):
    """Base of every error that lmx raises on purpose.

    ``message`` is for people and says what to do next. ``param`` is the path of the field that is
    wrong (``messages[2].content``). ``retry_after_s`` is set if trying again later makes sense.
    ``final`` means that trying again never makes sense until somebody changes the configuration or
    acts, although other errors with this code pass with time.

    ``message`` and ``param`` may quote what others wrote, and are cut to a length for people.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        final: bool = False,
    ) -> None:
        self.message = clamp(message)
        super().__init__(self.message)
        self.code = code
        self.param = None if param is None else clamp(param)
        self.retry_after_s = retry_after_s
        self.final = final


class RequestError(LmxError):
    """The request can't be met as it is, and sending it again changes nothing."""


class UnavailableError(LmxError):
    """Nothing was produced, and the same request may succeed later."""


class GenerationError(LmxError):
    """A generation that was accepted was lost before its end."""


class OperationError(LmxError):
    """A command to the supervisor (load, kill, ...) failed."""


class ProtocolError(LmxError):
    """Bytes on an lmx socket that are not a message of this version."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.PROTOCOL_ERROR, message)
