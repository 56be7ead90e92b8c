"""What a request of the Responses API may hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import ConfigDict, Field, Tag

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate, Structure, Thinking
from lmx.protocol.messages.tasks import Tokenize
from lmx.protocol.states import StructureKind
from lmx.router.media.source import PartSource, shown
from lmx.router.schema.requests.conversation.messages import MAX_MESSAGES
from lmx.router.schema.requests.generation import (
    AnswerFields,
    LabelFields,
    SharingFields,
    generate_of,
)
from lmx.router.schema.requests.responses.conversation import (
    conversation_of,
    further_tools,
    unread_items,
)
from lmx.router.schema.requests.responses.items import Input, Item, MessageItem
from lmx.router.schema.requests.responses.tools import Choice, OfferedTools, Tools, offered_tools
from lmx.router.schema.requests.sampling import ParameterFields, parameter
from lmx.router.schema.validation import (
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    FreeObject,
    NonEmpty,
    Positive,
    Strict,
    invalid,
    missing,
    unsupported,
    validated,
)
from lmx.router.workers.dispatch import TOKENIZE_DEADLINE_S

_LOGPROBS: Final = "message.output_text.logprobs"
_SEALED: Final = "reasoning.encrypted_content"
_MAX_INCLUDED: Final = 64


class ReasoningConfig(Strict):
    """How the model thinks."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """The model's template gets the nearest effort that it takes. `none` also switches thinking
    off, where the model can switch it. Default: the model's."""
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """With any but `none`, thoughts are sent as a summary: whole, because nothing makes them
    shorter. Default: they are the item's content."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """An older name of `summary`."""


class AnswerForm(Strict):
    """The form that an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    """Any text, some JSON object, or JSON that a schema describes."""
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    """It is accepted, for the client's own use."""
    description: str | None = None
    """It is accepted, for the client's own use."""
    strict: bool | None = None
    """It is accepted: a schema is always enforced."""
    schema_: Annotated[FreeObject | None, Field(alias="schema")] = None
    """The JSON schema of the type `json_schema`. What no grammar enforces of it is checked when the
    answer is whole."""


class TextConfig(Strict):
    """How the text of the answer is to be."""

    format: AnswerForm | None = None
    """The form that the answer must have: `text`, `json_object` or `json_schema`. It is enforced.
    Default: text."""
    verbosity: str | None = None
    """It is accepted, and changes nothing."""


class ConversationReference(Strict):
    """A conversation by its id."""

    id: NonEmpty
    """The id."""


class ResponsePromptFields(Strict):
    """What a prompt is made of."""

    model: str | None = None
    """The id, an alias or the source of a model, or a name that routes (`auto` ...). Default: the
    configured one."""
    input: Input | None = None
    """What the model answers: a text, or items. It may be left out with `previous_response_id`,
    `conversation` or `instructions`."""
    instructions: str | None = None
    """The system prompt. That of an earlier response is not taken over. Default: none."""
    previous_response_id: str | None = None
    """The id of a stored response, whose input and output come before `input`. Default: none."""
    conversation: (
        Annotated[
            Annotated[NonEmpty, Tag(TEXT)] | Annotated[ConversationReference, Tag(OBJECT)],
            TEXT_OR_OBJECT,
        ]
        | None
    ) = None
    """The id of a conversation (`/v1/conversations`), or `{"id"}`: its items come before `input`,
    and a response that is completed and stored adds its input and output to it. Not together with
    `previous_response_id`. Default: none."""
    prompt: Any = None
    """Prompts are not kept here: any value is a 400."""
    tools: Tools | None = None
    """Tools that the model may call: functions, custom tools, and namespaces of both. Those that
    only OpenAI's servers run are left out, and named in the header `X-Lmx-Ignored`. Default:
    none."""
    tool_choice: Choice | None = None
    """Whether the model must call a tool: `auto`, `none`, `required`, a tool (`{"type", "name"}`),
    or `{"type": "allowed_tools", "mode", "tools"}`, where the other tools are as if they were not
    there. A call that must be made is enforced by a grammar. Default: `auto`."""
    parallel_tool_calls: bool | None = None
    """The answer may have more than one call. Default: true."""
    reasoning: ReasoningConfig | None = None
    """How the model thinks."""
    text: TextConfig | None = None
    """How the text of the answer is to be."""
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: of a conversation that does not fit into the context besides the answer, for which at
    most a quarter of it is kept free, the beginning is cut off, and the model reads only where
    images and sounds were. `disabled`: one that is longer than the context is a 400. Default:
    `disabled`."""

    @property
    def items(self) -> Sequence[Item]:
        """The input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input or []

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that the prompt continues."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def earlier_field(self) -> str:
        """The field that stands for the items before the input."""
        return "previous_response_id" if self.conversation is None else "conversation"

    @property
    def thinking(self) -> Thinking:
        """How the model thinks."""
        effort = self.reasoning.effort if self.reasoning else None
        return Thinking(effort, False if effort == "none" else None, param="reasoning.effort")

    @property
    def cut_tokens(self) -> int | None:
        """How many tokens at the end of the prompt are taken, in the worker's terms."""
        return -1 if self.truncation == "auto" else None


class ResponseStreamOptions(Strict):
    """What a stream has besides the answer."""

    include_obfuscation: bool | None = None
    """It is accepted, and changes nothing."""


class ResponsesRequest(
    ResponsePromptFields, AnswerFields, ParameterFields, SharingFields, LabelFields
):
    """The body of POST /v1/responses."""

    stream_options: ResponseStreamOptions | None = None
    """What a stream has besides the answer."""
    background: bool | None = None
    """The response is made whether or not its client waits, and is fetched by its id. It needs
    `store`. Default: false."""
    store: bool | None = None
    """The response can be fetched by its id, and be a `previous_response_id`, for as long as jobs
    are kept. Default: true."""
    max_output_tokens: Positive | None = None
    """How many tokens the answer has at most, thinking included. The model's `max_tokens_limit`
    and its context cap it. Default: the model's, else up to the context."""
    max_tool_calls: Positive | None = None
    """It is accepted, and changes nothing: it limits calls that OpenAI's servers run."""
    repetition_penalty: float | None = parameter("repetition_penalty")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """With how many alternatives each token of the text is given. Default: 0."""
    generate: bool | None = None
    """`false`: the prompt is read, so that its prefix is cached, and nothing is written. The id of
    the response, which has no output, may be a `previous_response_id`. Not together with
    `conversation`. Default: true."""
    context_management: Any = None
    """A conversation is compacted when that is requested, and not by itself: any entry is a 400.
    Default: none."""
    include: Annotated[list[str], Field(max_length=_MAX_INCLUDED, fail_fast=True)] | None = None
    """What the answer has besides: `message.output_text.logprobs`, and
    `reasoning.encrypted_content`, the thoughts as a token of this lmx that brings them back when it
    is sent again. Others are accepted, and change nothing."""

    @property
    def token_limit(self) -> int | None:
        return 0 if self.generate is False else self.max_output_tokens

    @property
    def is_stored(self) -> bool:
        """Whether the response can be fetched by its id."""
        return self.store is not False

    @property
    def seals_reasoning(self) -> bool:
        """Whether the items of thoughts have a token that brings them back."""
        return _SEALED in (self.include or ())

    @property
    def summarizes(self) -> bool:
        """Whether thoughts are sent as a summary."""
        wanted = self.reasoning and (self.reasoning.summary or self.reasoning.generate_summary)
        return wanted not in (None, "none")

    @property
    def logprobs(self) -> int | None:
        """With how many alternatives each token is given; None without logprobs."""
        asked = bool(self.top_logprobs) or _LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if asked else None


class InputTokensRequest(ResponsePromptFields):
    """The body of POST /v1/responses/input_tokens."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request of either kind."""

    tools: OfferedTools
    messages: tuple[dict[str, Any], ...]
    media: tuple[PartSource, ...]
    """Where the images and sounds come from."""
    left_out: Sequence[str]
    """What was left out, for the header."""


def parse_responses(body: dict[str, Any]) -> ResponsesRequest:
    """Return the checked request. Raises :class:`RequestError` (400) for the first fault."""
    request = validated(ResponsesRequest, body)
    _check(request)
    if request.context_management:
        raise unsupported(
            "context_management",
            "is not supported: lmx compacts a conversation when that is requested. Send it to "
            'POST /v1/responses/compact, or with {"type": "compaction_trigger"} as the last '
            "item of `input`, when `usage` shows that it has become long.",
        )
    if request.generate is False and request.conversation is not None:
        raise invalid(
            "generate",
            "can't be false with `conversation`: `input` would be in it twice. Continue the "
            "response by `previous_response_id`.",
        )
    if request.background and not request.is_stored:
        raise invalid("background", "needs `store`: the response is fetched by its id.")
    return request


def parse_input_tokens(body: dict[str, Any]) -> InputTokensRequest:
    """The same for a request that counts tokens."""
    request = validated(InputTokensRequest, body)
    _check(request)
    return request


def json_of(value: Any, param: str) -> bytes:
    """Return a part of a body as JSON. Raises :class:`RequestError`, which names ``param``, for
    what other programs would not take, in fields too that are not looked at."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise invalid(
            param, "has a number beyond 64 bits, or a text that is no Unicode."
        ) from error


def _check(request: ResponsePromptFields) -> None:
    if request.prompt is not None:
        raise unsupported(
            "prompt", "is not supported: lmx keeps no prompts. Send the prompt in `input`."
        )
    if request.conversation is not None and request.previous_response_id is not None:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "Mutually exclusive parameters: ['conversation', 'previous_response_id']. Ensure you "
            "are only providing one of: 'previous_response_id' or 'conversation'.",
            param="conversation",
        )


def asked_of(
    request: ResponsePromptFields,
    items: Sequence[Item],
    key: bytes,
    *,
    owner: str | None = None,
    earlier: int = 0,
) -> Asked:
    """Return what a request asks of a worker. ``items`` is all of its conversation, of which the
    first ``earlier`` items are those of earlier responses or of a conversation, ``key`` that of
    the tokens of thoughts, and ``owner`` the key that the request came with. Raises
    :class:`RequestError`."""
    conversation = conversation_of(
        request.instructions,
        items,
        earlier=earlier,
        earlier_field=request.earlier_field,
        key=key,
        owner=owner,
    )
    messages = conversation.messages
    if not messages and items:
        kind = shown(items[-1].type or "")
        raise invalid("input", f"has nothing that a model reads: {kind} is left out.")
    if not messages:
        raise missing("input", "is required but missing: a text, or items of a conversation.")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"The conversation has {len(messages)} messages, and may have at most {MAX_MESSAGES}.",
            param="input",
        )
    tools = offered_tools(
        request.tools or (),
        further_tools(items),
        request.tool_choice,
        parallel=request.parallel_tool_calls is not False,
    )
    left_out = [*tools.left_out, *unread_items(items, key)]
    return Asked(tools, tuple(messages), conversation.media, left_out)


def generation_of(request: ResponsesRequest, asked: Asked) -> Generate:
    """Return the request to a worker, without ids and credit."""
    return replace(
        generate_of(request),
        messages=asked.messages,
        top_logprobs=request.logprobs,
        structure=None if request.generate is False else _structure_of(request),
        tool_use=asked.tools.use,
        thinking=request.thinking,
        truncate_prompt_tokens=request.cut_tokens,
    )


def tokenizing_of(request: InputTokensRequest, asked: Asked) -> Tokenize:
    """Return the task that counts the tokens of a prompt, without its id."""
    return Tokenize(
        0,
        "",
        TOKENIZE_DEADLINE_S,
        messages=asked.messages,
        tool_use=asked.tools.use,
        thinking=request.thinking,
    )


def _structure_of(request: ResponsePromptFields) -> Structure | None:
    wanted = request.text.format if request.text else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Structure(StructureKind.JSON_OBJECT, "", "text.format")
    param = "text.format.schema"
    if wanted.schema_ is None:
        raise missing(param, "is required with the type 'json_schema'.")
    schema = orjson.dumps(wanted.schema_).decode()
    return Structure(StructureKind.JSON_SCHEMA, schema, param)


class RetrieveQuery(Strict):
    """The query of GET /v1/responses/{id}."""

    model_config = ConfigDict(strict=False)

    stream: bool | None = None
    """Whether the events of the response are sent again. Default: false."""
    starting_after: Annotated[int, Field(ge=0)] | None = None
    """The number of the event after which the events begin. Default: from the first on."""


class InputItemsQuery(Strict):
    """The query of GET /v1/responses/{id}/input_items."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    """How many items are listed at most. Default: 20."""
    order: Literal["asc", "desc"] = "desc"
    """`asc`: the oldest first. Default: `desc`."""
    after: str | None = None
    """The id of the item after which the list begins. Default: from the first on."""
