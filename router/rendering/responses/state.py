"""The fields of a response that change with its state. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import ChoiceEnded, Usage
from lmx.protocol.states import FinishReason
from lmx.router.http.errors import http_status, shown_message
from lmx.router.http.responses import Answer
from lmx.router.rendering.answer_format import Beginning, Ending, warnings_object
from lmx.router.rendering.envelope import Identity, Timings, Warnings, timings_object
from lmx.router.rendering.responses.items import COMPLETED, IN_PROGRESS, INCOMPLETE, OutputItem

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
QUEUED: Final = "queued"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

_TOO_LONG: Final[IncompleteDetails] = {"reason": "max_output_tokens"}


class IncompleteDetails(Answer):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseFault(Answer):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    """OpenAI's code."""
    message: str
    type: str
    """The code of lmx."""


class InputDetails(Answer):
    """Which tokens of the input were cheaper."""

    cached_tokens: int
    """How many tokens were in the prefix cache."""
    cache_write_tokens: int
    """Always 0."""


class OutputDetails(Answer):
    """What the tokens of the output were for."""

    reasoning_tokens: int
    """How many of them were thoughts."""


class ResponseUsage(Answer):
    """How many tokens it took."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseState(Warnings):
    """The fields of a response that change with its state."""

    status: Status
    error: ResponseFault | None
    """Why it failed."""
    incomplete_details: IncompleteDetails | None
    """Why it is not whole."""
    completed_at: int | None
    """When it was whole, in Unix time."""
    usage: ResponseUsage | None
    """How many tokens it took; null before its end."""
    timings: NotRequired[Timings | None]
    """Where the time went; there when it is over."""


class ReasoningEcho(Answer):
    """How the model was to think."""

    effort: str | None
    summary: str | None


class TextEcho(Answer):
    """How the text was to be."""

    format: dict[str, Any]
    verbosity: str


class ConversationEcho(Answer):
    """A conversation."""

    id: str


class ResponseObject(ResponseState):
    """A response. The fields of the request that it repeats are as they were sent."""

    id: str
    """The id of the response: its job has the same."""
    object: Literal["response"]
    created_at: int
    """Unix time."""
    model: str
    """The id of the model that answered."""
    output: list[OutputItem]
    """What the model thought, answered and called, in the order of time."""
    background: bool
    conversation: NotRequired[ConversationEcho | None]
    """The conversation that it continues, if the request named one."""
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["flex", "default"]
    """`flex`: it took only what nobody else wanted."""
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


def under_way(status: Status = IN_PROGRESS) -> ResponseState:
    """Return the state of a response that is not over."""
    return _state(status)


def ended(
    identity: Identity, beginning: Beginning, end: ChoiceEnded, ending: Ending
) -> ResponseState:
    """Return the state of a response that has ended well, or too early."""
    is_cut = end.reason is FinishReason.LENGTH
    return {
        **_state(INCOMPLETE if is_cut else COMPLETED),
        "incomplete_details": _TOO_LONG if is_cut else None,
        "completed_at": None if is_cut else identity.created_s + round(ending.clocked.total_s),
        "usage": _usage_object(ending.finished.usage),
        "timings": timings_object(ending.finished, ending.clocked),
        **warnings_object(beginning, ending),
    }


def failed(error: LmxError) -> ResponseState:
    """Return the state of a response that has failed or was cancelled."""
    shown = error_object(error.code.value, shown_message(error), http_status(error.code))
    status: Status = CANCELLED if error.code is ErrorCode.REQUEST_CANCELLED else FAILED
    return {**_state(status), "error": shown}


def error_object(code: str, message: str, status: int) -> ResponseFault:
    """Return why a response failed: OpenAI's code, and lmx's own as the type."""
    if status == 429:
        return {"code": "rate_limit_exceeded", "message": message, "type": code}
    kind: Literal["invalid_prompt", "server_error"]
    # OpenAI has no code for what somebody else has cancelled.
    is_prompt = status < 500 and code != ErrorCode.REQUEST_CANCELLED
    kind = "invalid_prompt" if is_prompt else "server_error"
    return {"code": kind, "message": message, "type": code}


def _state(status: Status) -> ResponseState:
    return {
        "status": status,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
        "usage": None,
    }


def _usage_object(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
