"""The fields of a response that change with its state. Pure."""

from __future__ import annotations

from typing import Any, Final

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Usage
from lmx.protocol.states import FinishReason
from lmx.router.http.errors import http_status, shown_message
from lmx.router.rendering.answer_format import Beginning, Ending, warnings_object
from lmx.router.rendering.envelope import Identity, timings_object
from lmx.router.rendering.responses.items import COMPLETED, IN_PROGRESS, INCOMPLETE

QUEUED: Final = "queued"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

_TOO_LONG: Final = {"reason": "max_output_tokens"}


def under_way(status: str = IN_PROGRESS) -> dict[str, Any]:
    """Return the state of a response that is not over."""
    return _state(status)


def ended(
    identity: Identity, beginning: Beginning, end: ChoiceEnded, ending: Ending
) -> dict[str, Any]:
    """Return the state of a response that has ended well, or too early."""
    is_cut = end.reason is FinishReason.LENGTH
    state = _state(INCOMPLETE if is_cut else COMPLETED)
    state |= {
        "incomplete_details": _TOO_LONG if is_cut else None,
        "completed_at": None if is_cut else identity.created_s + round(ending.clocked.total_s),
        "usage": _usage_object(ending.finished.usage),
        "timings": timings_object(ending.finished, ending.clocked),
    }
    return state | warnings_object(beginning, ending)


def failed(error: LmxError) -> dict[str, Any]:
    """Return the state of a response that has failed."""
    shown = error_object(error.code.value, shown_message(error), http_status(error.code))
    return _state(FAILED) | {"error": shown}


def error_object(code: str, message: str, status: int) -> dict[str, Any]:
    """Return why a response failed: OpenAI's code, and lmx's own as the type."""
    if status == 429:
        kind = "rate_limit_exceeded"
    else:
        kind = "invalid_prompt" if status < 500 else "server_error"
    return {"code": kind, "message": message, "type": code}


def _state(status: str) -> dict[str, Any]:
    return {
        "status": status,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
        "usage": None,
    }


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
