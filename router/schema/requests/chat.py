"""What a chat request may hold."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate, Thinking
from lmx.router.media.source import PartSource
from lmx.router.schema.requests.conversation.media import VideoDefaults
from lmx.router.schema.requests.conversation.messages import (
    Messages,
    check_messages,
    plain_messages,
)
from lmx.router.schema.requests.conversation.older_forms import modernized
from lmx.router.schema.requests.conversation.tools import FunctionFields, ToolFields, tool_use_of
from lmx.router.schema.requests.generation import (
    GenerationFields,
    Think,
    check_generation,
    generate_of,
)
from lmx.router.schema.requests.sampling import only_value
from lmx.router.schema.requests.unsupported import CHAT, refuse_unsupported
from lmx.router.schema.validation import Count, FreeObject, Strict, invalid, validated

_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningOptions(Strict):
    """How the model thinks, in one object."""

    effort: _Effort | None = None
    """The same as `reasoning_effort`."""
    enabled: bool | None = None
    """The same as `enable_thinking`."""
    max_tokens: Count | None = None
    """The same as `thinking_token_budget`."""


class ChatRequest(GenerationFields, ToolFields, FunctionFields, VideoDefaults):
    """The body of POST /v1/chat/completions.

    A field of the API that is not here is either refused
    (:mod:`lmx.router.schema.requests.unsupported`) or unknown and ignored. None means the same as
    leaving a field out."""

    messages: Messages
    """The conversation until now."""
    logprobs: bool | None = None
    """The answer has each token of its content with the token's logprob. Default: false."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """With how many alternatives each token is given. It needs `logprobs`. Default: 0."""
    reasoning_effort: _Effort | None = None
    """The model's template gets the nearest effort that it takes. `none` also switches thinking
    off, unless `enable_thinking` is set. Default: the model's."""
    enable_thinking: bool | None = None
    """Whether the model thinks before it answers, for models that can switch it. It may also stand
    inside `chat_template_kwargs`. Default: the model's."""
    thinking_token_budget: Count | None = None
    """How many tokens the thinking has at most; then it is ended. The name is vLLM's. Default: no
    limit."""
    thinking_budget: Count | None = None
    """The same as `thinking_token_budget`, by Qwen's name. Both, different, are a 400."""
    reasoning: ReasoningOptions | None = None
    """The same three in one object, as OpenRouter has them. A field and its namesake here,
    different, are a 400."""
    think: Think | None = None
    """The same as `enable_thinking`, or as `reasoning_effort` if it is a word, by Ollama's name."""
    chat_template_kwargs: FreeObject | None = None
    """Values for the model's chat template. A template that loops, or takes more than 1 GiB for a
    request, is stopped: a 400 `chat_template_failed`. Default: the model's configuration."""
    add_generation_prompt: bool | None = None
    """The prompt ends where the model's template lets an answer begin; else it ends with the last
    message. The name is vLLM's. Default: true, and false with `continue_final_message`."""
    continue_final_message: bool | None = None
    """The answer continues the last message instead of being another one, and has only what is
    new. That message must have a text and no calls. `add_generation_prompt: true` with it is a
    400. The name is vLLM's. Default: false."""


def parse_chat(
    body: dict[str, Any], *, ovms: bool = False
) -> tuple[ChatRequest, Generate, tuple[PartSource, ...]]:
    """Return the checked request, the request to a worker, and where its media come from.

    ``ovms`` selects the rules of /v3. This module does not set the ids and the credit, and reads no
    media. Raises :class:`RequestError` (400) for the first fault.
    """
    request = validated(ChatRequest, modernized(body))
    check_messages(request.messages)
    check_generation(request, ovms=ovms)
    refuse_unsupported(body, CHAT)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "needs `logprobs: true`.")
    messages, media = plain_messages(request.messages, request)
    if request.continue_final_message:
        _check_continued(request, messages)
    generate = replace(
        generate_of(request, ovms=ovms),
        messages=messages,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        template_kwargs=request.chat_template_kwargs,
        tool_use=tool_use_of(request),
        thinking=_thinking_of(request),
        add_generation_prompt=request.add_generation_prompt is not False
        and not request.continue_final_message,
        continue_final_message=bool(request.continue_final_message),
    )
    return request, generate, media


def _check_continued(request: ChatRequest, messages: Sequence[dict[str, Any]]) -> None:
    if request.add_generation_prompt:
        raise invalid(
            "continue_final_message",
            "can't be combined with `add_generation_prompt: true`: an answer either continues "
            "the last message or begins after it.",
        )
    last = messages[-1]
    content = last["content"]
    if not content or not isinstance(content, str) or last.get("tool_calls"):
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "With `continue_final_message` the last message must have a text, no calls and no "
            "media: there is nothing to continue.",
            param=f"messages[{len(messages) - 1}]",
        )


def _thinking_of(request: ChatRequest) -> Thinking:
    options = request.reasoning or ReasoningOptions()
    switch, word = (
        (request.think, None) if isinstance(request.think, bool) else (None, request.think)
    )
    budget = only_value(
        "the budget of the thinking",
        {
            "thinking_token_budget": request.thinking_token_budget,
            "thinking_budget": request.thinking_budget,
            "reasoning.max_tokens": options.max_tokens,
        },
    )
    efforts = {
        "reasoning_effort": request.reasoning_effort,
        "reasoning.effort": options.effort,
        "think": word,
    }
    effort = only_value("the effort of the thinking", efforts)
    enabled = only_value(
        "whether the model thinks",
        {
            "enable_thinking": request.enable_thinking,
            "reasoning.enabled": options.enabled,
            "think": switch,
        },
    )
    if enabled is None:
        # An explicit value wins over what an effort implies.
        kwargs = request.chat_template_kwargs or {}
        given = (kwargs.get("enable_thinking"), kwargs.get("thinking"))
        enabled = next((value for value in given if isinstance(value, bool)), None)
    if enabled is None and effort == "none":
        enabled = False
    param = next((name for name, value in efforts.items() if value is not None), "reasoning_effort")
    return Thinking(effort, enabled, budget, param)
