"""What a request of Anthropic's Messages API may hold."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from lmx.protocol.messages.data import Generate, Structure, Thinking
from lmx.protocol.messages.tasks import Tokenize
from lmx.protocol.states import StructureKind
from lmx.router.media.source import PartSource
from lmx.router.schema.requests.anthropic.blocks import SystemText
from lmx.router.schema.requests.anthropic.conversation import Turns, chat_messages, hosted_blocks
from lmx.router.schema.requests.anthropic.tools import Choice, Tools, hosted_tools, tool_use_of
from lmx.router.schema.requests.generation import (
    MAX_STOP_CHARS,
    MAX_STOPS,
    AnswerFields,
    generate_of,
)
from lmx.router.schema.requests.sampling import parameter
from lmx.router.schema.validation import (
    Count,
    FreeObject,
    Positive,
    Strict,
    invalid,
    unsupported,
    validated,
)
from lmx.router.workers.dispatch import TOKENIZE_DEADLINE_S


class ThinkingConfig(Strict):
    """Whether and how long the model thinks before it answers."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    """`enabled`, `adaptive` and `between_tools`: the model thinks, where that can be switched.
    `disabled`: it does not, where that can be switched."""
    budget_tokens: Positive | None = None
    """How many tokens the thinking has at most; then it is ended. It must be less than
    `max_tokens`. Default: no limit."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: the answer's blocks of thinking have no text. Default: they have all of it."""


class OutputFormat(Strict):
    """The form that the answer must have."""

    type: Literal["json_schema"]
    """A JSON schema is the only kind."""
    schema_: Annotated[FreeObject, Field(alias="schema")]
    """The JSON schema. It is enforced while the answer is written."""


class OutputConfig(Strict):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """The model's template gets the nearest effort that it takes. Default: the model's."""
    format: OutputFormat | None = None
    """The form that the answer must have. Default: text."""


class PromptFields(Strict):
    """What a prompt is made of."""

    model: str
    """The id, an alias or the source of a model, or a name that routes (`auto` ...)."""
    messages: Turns
    """The conversation until now. If its last turn is the assistant's, the answer continues it."""
    system: SystemText | None = None
    """The system prompt: a text, or blocks of text. What differs in each request and says nothing,
    as the first line `x-anthropic-billing-header: ...`, is left out (`server.stable_prompts`).
    Default: none."""
    tools: Tools | None = None
    """Tools that the model may call. Those that only Anthropic's models or servers know are left
    out, and named in the header `X-Lmx-Ignored`. Default: none."""
    tool_choice: Choice | None = None
    """Whether the model must call a tool. Default: `auto`."""
    thinking: ThinkingConfig | None = None
    """Whether and how long the model thinks. Default: the model's."""
    output_config: OutputConfig | None = None
    """How much effort the model makes, and the form of the answer."""
    output_format: OutputFormat | None = None
    """An older name of `output_config.format`. Both are a 400."""
    cache_control: FreeObject | None = None
    """It is accepted here and in every block, and changes nothing: prefixes are found by
    themselves."""

    @property
    def effective_thinking(self) -> Thinking:
        """How the model thinks."""
        effort = self.output_config.effort if self.output_config else None
        param = "output_config.effort"
        if self.thinking is None:
            return Thinking(effort, param=param)
        enabled = self.thinking.type != "disabled"
        budget = self.thinking.budget_tokens if enabled else None
        return Thinking(effort, enabled, budget, param)

    @property
    def left_out(self) -> list[str]:
        """The tools and blocks that are left out."""
        return [*hosted_tools(self.tools), *hosted_blocks(self.messages)]


class MessagesRequest(PromptFields, AnswerFields):
    """The body of POST /v1/messages.

    The headers `anthropic-version` and `anthropic-beta` are accepted, and change nothing."""

    max_tokens: Count
    """How many tokens the answer has at most, thinking included. 0: the prompt is read, so that it
    is found in the prefix cache, and nothing is answered."""
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(max_length=MAX_STOP_CHARS)]],
            Field(max_length=MAX_STOPS, fail_fast=True),
        ]
        | None
    ) = None
    """Texts that end the answer, and are not in it: up to 64. Empty ones are left out. Default:
    none."""
    temperature: float | None = parameter("temperature")
    top_p: float | None = parameter("top_p")
    top_k: int | None = parameter("top_k")
    metadata: FreeObject | None = None
    """It is accepted, and changes nothing."""
    service_tier: str | None = None
    """It is accepted, and changes nothing."""
    thread: FreeObject | None = None
    """A conversation that the server keeps. Any value is a 400, in the form after which Anthropic's
    libraries send the whole conversation."""

    @property
    def token_limit(self) -> int:
        return self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return tuple(filter(None, self.stop_sequences or ()))

    @property
    def shows_thinking(self) -> bool:
        """Whether the blocks of thinking have their text."""
        return self.thinking is None or self.thinking.display != "omitted"


class CountTokensRequest(PromptFields):
    """The body of POST /v1/messages/count_tokens."""


def parse_messages(
    body: dict[str, Any],
) -> tuple[MessagesRequest, Generate, tuple[PartSource, ...]]:
    """Return the checked request, the request to a worker, without ids and credit, and where its
    images come from.

    Raises :class:`RequestError` (400) for the first fault.
    """
    request = validated(MessagesRequest, body)
    if request.thread is not None:
        raise unsupported(
            "thread",
            "is not supported, since no conversation is kept here: leave it out, and send the "
            "whole conversation in `messages`.",
        )
    conversation = chat_messages(request.system, request.messages)
    thinking = request.effective_thinking
    budget = thinking.budget_tokens
    if budget is not None and budget >= request.max_tokens > 0:
        raise invalid(
            "thinking.budget_tokens",
            f"({budget}) must be less than `max_tokens` ({request.max_tokens}), which counts the "
            "thinking too.",
        )
    goes_on = _continues(conversation.messages)
    generate = replace(
        generate_of(request),
        messages=tuple(conversation.messages),
        structure=_structure_of(request),
        tool_use=tool_use_of(request.tools, request.tool_choice),
        thinking=thinking,
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
    )
    return request, generate, conversation.media


def parse_count(
    body: dict[str, Any],
) -> tuple[CountTokensRequest, Tokenize, tuple[PartSource, ...]]:
    """Return the checked request, the task for a worker, and where its images come from.
    Errors: as of :func:`parse_messages`."""
    request = validated(CountTokensRequest, body)
    conversation = chat_messages(request.system, request.messages)
    _structure_of(request)
    goes_on = _continues(conversation.messages)
    task = Tokenize(
        0,
        "",
        TOKENIZE_DEADLINE_S,
        messages=tuple(conversation.messages),
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
        tool_use=tool_use_of(request.tools, request.tool_choice),
        thinking=request.effective_thinking,
    )
    return request, task, conversation.media


def _continues(messages: list[dict[str, Any]]) -> bool:
    """Return whether the answer continues the last message."""
    last = messages[-1]
    if last["role"] != "assistant":
        return False
    if last.get("tool_calls") or not last["content"]:
        raise invalid(
            "messages",
            "ends with a turn of the assistant that has calls or no text: the answer can't "
            "continue it. Add the results of the calls, or a turn of the user.",
        )
    return True


def _structure_of(request: PromptFields) -> Structure | None:
    new = request.output_config.format if request.output_config else None
    old = request.output_format
    if new is not None and old is not None:
        raise invalid(
            "output_format",
            "can't be combined with `output_config.format`: they are two names of one thing, "
            "send one of them.",
        )
    wanted = old if new is None else new
    if wanted is None:
        return None
    param = "output_format.schema" if new is None else "output_config.format.schema"
    schema = orjson.dumps(wanted.schema_).decode()
    return Structure(StructureKind.JSON_SCHEMA, schema, param)
