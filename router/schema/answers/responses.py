"""What the routes of OpenAI's Responses API answer, whole and as a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from lmx.router.http.responses import Answer
from lmx.router.schema.answers.errors import Timings

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TokenChance(Answer):
    """A likely token."""

    token: str
    """The token's text."""
    logprob: float
    """How likely it was."""
    bytes: list[int] | None = None
    """The bytes of the text. A stream's events have none."""


class ChosenToken(TokenChance):
    """A token of a text."""

    top_logprobs: list[TokenChance]
    """The likeliest tokens in its place."""


class OutputText(Answer):
    """A text."""

    type: Literal["output_text"]
    text: str
    """The text; empty where a stream's part begins."""
    annotations: list[Any]
    """Always empty."""
    logprobs: list[ChosenToken]
    """Its tokens, if they were asked for."""


class ThoughtText(Answer):
    """What the model thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: str
    """The thoughts; empty where a stream's part begins."""


class OutputMessage(Answer):
    """What the model said."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]
    """One text; none where a stream's item begins."""


class OutputReasoning(Answer):
    """What the model thought."""

    id: str
    type: Literal["reasoning"]
    summary: list[ThoughtText]
    """The thoughts, if a summary was asked for."""
    content: list[ThoughtText] | None = None
    """The thoughts otherwise."""
    encrypted_content: str | None = None
    """The thoughts as a token that brings them back, if that was asked for."""
    status: ItemStatus


class OutputFunctionCall(Answer):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    call_id: str
    """The id that the call's output names."""
    name: str
    """The function."""
    namespace: str | None = None
    """The namespace that it is in."""
    arguments: str
    """The arguments, as JSON text; empty where a stream's item begins."""
    status: ItemStatus


class OutputCustomCall(Answer):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    call_id: str
    """The id that the call's output names."""
    name: str
    """The tool."""
    namespace: str | None = None
    """The namespace that it is in."""
    input: str
    """What the tool is given; empty where a stream's item begins."""


OutputItem = Annotated[
    OutputMessage | OutputReasoning | OutputFunctionCall | OutputCustomCall,
    Field(discriminator="type"),
]


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


class ReasoningEcho(Answer):
    """How the model was to think."""

    effort: str | None
    summary: str | None


class TextEcho(Answer):
    """How the text was to be."""

    format: dict[str, Any]
    verbosity: str


class ResponseObject(Answer):
    """A response. The fields of the request that it repeats are as they were sent."""

    id: str
    """The id of the response: its job has the same."""
    object: Literal["response"]
    created_at: int
    """Unix time."""
    model: str
    """The id of the model that answered."""
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    output: list[OutputItem]
    """What the model thought, said and called, in this order of time."""
    error: ResponseFault | None
    """Why it failed."""
    incomplete_details: IncompleteDetails | None
    """Why it is not whole."""
    completed_at: int | None
    """When it was whole, in Unix time."""
    usage: ResponseUsage | None
    """How many tokens it took; null before its end."""
    background: bool
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
    service_tier: Literal["default"]
    """All requests are served alike."""
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None
    timings: Timings | None = None
    """Where the time went; there when it is over."""
    warnings: list[str] | None = None
    """Sentences about what was done otherwise than it was asked for. They are there only when there
    are some."""


class ResponseEvent(Answer):
    """The response, at its beginning and at its end."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    """The event's place in the stream, from 0."""
    response: ResponseObject


class ItemEvent(Answer):
    """An item begins, or is whole."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    output_index: int
    """The item's place in the output, from 0."""
    item: OutputItem


class PartEvent(Answer):
    """A part of an item begins, or is whole."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ThoughtText


class SummaryPartEvent(Answer):
    """The same for thoughts that were asked for as a summary."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    sequence_number: int
    item_id: str
    output_index: int
    summary_index: int
    part: ThoughtText


class OutputTextDelta(Answer):
    """More of a text."""

    type: Literal["response.output_text.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[ChosenToken]
    """The tokens that end in it, if they were asked for."""


class OutputTextDone(Answer):
    """A text is whole."""

    type: Literal["response.output_text.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[ChosenToken]


class ThoughtDelta(Answer):
    """More of what the model thinks."""

    type: Literal["response.reasoning_text.delta", "response.reasoning_summary_text.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int | None = None
    summary_index: int | None = None
    """It is there in the place of `content_index` where a summary was asked for."""
    delta: str


class ThoughtDone(Answer):
    """Thoughts are whole."""

    type: Literal["response.reasoning_text.done", "response.reasoning_summary_text.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int | None = None
    summary_index: int | None = None
    text: str


class CallDelta(Answer):
    """More of what a function, or a custom tool, is given."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Answer):
    """A function's arguments are whole."""

    type: Literal["response.function_call_arguments.done"]
    sequence_number: int
    item_id: str
    output_index: int
    arguments: str


class InputDone(Answer):
    """A custom tool's input is whole."""

    type: Literal["response.custom_tool_call_input.done"]
    sequence_number: int
    item_id: str
    output_index: int
    input: str


class ErrorEvent(Answer):
    """The only event of a response that could not begin, because its model could not."""

    type: Literal["error"]
    sequence_number: int
    code: str
    message: str
    param: str | None


ResponseStreamEvent = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | SummaryPartEvent
    | OutputTextDelta
    | OutputTextDone
    | ThoughtDelta
    | ThoughtDone
    | CallDelta
    | ArgumentsDone
    | InputDone
    | ErrorEvent,
    Field(discriminator="type"),
]


class DeletedResponse(Answer):
    """A response that was removed."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(Answer):
    """The items of a response's input, page by page."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    """The items as they were sent, each with its type and an id."""
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokenCount(Answer):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int
