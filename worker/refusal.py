"""Why a worker takes no request now."""

from __future__ import annotations

from typing import NamedTuple

from lmx.protocol.errors import ErrorCode


class Refusal(NamedTuple):
    """What a request is told that is not taken."""

    code: ErrorCode
    message: str
    retry_after_s: float | None
