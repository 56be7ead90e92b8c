"""What a refusal and a failure look like, on every route, and within a stream."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lmx.protocol.errors import ErrorCode
from lmx.router.answer_types import Answer


class ErrorObject(Answer):
    """What went wrong. ``message`` says what to do next; ``param`` is the path of the field at
    fault (``messages[2].content``), where one is."""

    message: str
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "rate_limit_error",
        "server_error",
    ]
    param: str | None
    code: ErrorCode = Field(strict=False)
    job_id: str | None = None


class Error(Answer):
    """Every answer that is not well. ``job_id`` is there with ``sync_timeout``: the job goes on,
    and has the answer when it has ended."""

    error: ErrorObject
