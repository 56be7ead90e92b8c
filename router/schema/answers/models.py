"""What the lists of models answer with."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer


class ChatTemplateInfo(Answer):
    """What a model's chat template does not take as it is. Both are empty until it was loaded."""

    fitted: list[str]
    """The shapes of conversations that lmx fits to it (``later_system``: a system message in the
    middle). No text is lost."""
    refused: list[str]
    """The shapes that it refuses, or drops a text of, whatever is done."""


class ModelObject(Answer):
    """A model as OpenAI shows it, with lmx's fields after the first four."""

    id: str
    object: Literal["model"]
    created: int
    """Seconds since 1970: when its files were written, else when lmx was started."""
    owned_by: str
    parent: str | None
    """The model that it is an adapter of; null where it is none."""
    state: str
    """The state of its worker where it has one, else what becomes of it."""
    aliases: list[str]
    context_length: int | None
    """The tokens that its context may have. Null until it is known: of a source that was never
    fetched there are no files to read it from."""
    modalities: list[str]
    """What requests may contain: ``text``, ``image``, ``audio``, ``video``. Only ``text`` until the
    files of the model are known."""
    kind: str | None
    """What the model is for. Null until it is known."""
    capabilities: list[str]
    chat_template: ChatTemplateInfo
    """How conversations are fitted to its chat template."""
    reasoning_efforts: list[str]
    """The words for a reasoning effort that its template tells apart, the least first; with another
    word it gets the nearest. Empty until it was loaded, and where its template knows no efforts."""


class ReasoningLevel(Answer):
    """An effort that a model can be told to make."""

    effort: str
    description: str


class TruncationPolicy(Answer):
    """How much of a tool's output an agent keeps."""

    mode: Literal["bytes", "tokens"]
    limit: int


class CatalogEntry(Answer):
    """A model in the form of Codex's catalog of models."""

    slug: str
    """A name that requests may have: an id, an alias, or a route that leads to the model now."""
    display_name: str
    """The same."""
    description: str | None
    default_reasoning_level: str | None
    supported_reasoning_levels: list[ReasoningLevel]
    """The efforts that the model's template tells apart."""
    shell_type: Literal["shell_command"]
    visibility: Literal["list", "hide"]
    """Ids are listed in its menu; other names are known, and hidden."""
    supported_in_api: Literal[True]
    priority: int
    """Its place in the list, from 0."""
    upgrade: None
    availability_nux: None
    base_instructions: str
    """The system prompt that Codex sends. It refuses a list with an entry that has none."""
    supports_reasoning_summaries: bool
    support_verbosity: Literal[False]
    default_verbosity: None
    apply_patch_tool_type: Literal["freeform"]
    """Patches are the input of a custom tool with a grammar."""
    truncation_policy: TruncationPolicy
    supports_parallel_tool_calls: Literal[True]
    context_window: int | None
    """The tokens that its context may have. Null until it is known."""
    experimental_supported_tools: list[str]
    input_modalities: list[Literal["text", "image", "audio"]]
    """It refuses a list with any other word, such as `video`."""


class ModelList(Answer):
    """GET /v1/models: every model, loaded or not."""

    object: Literal["list"]
    data: list[ModelObject]
    models: list[CatalogEntry]
    """Those that answer conversations, in the form that Codex reads."""


class AnthropicModel(Answer):
    """A model as Anthropic shows it."""

    type: Literal["model"]
    id: str
    display_name: str
    """The same as the id."""
    created_at: str
    """When its files were written, else when lmx was started, as in RFC 3339."""
    lifecycle: Literal["active"]
    """Always the same."""
    max_input_tokens: int | None
    """The tokens that its context may have. Null until it is known."""
    max_tokens: int | None
    """The same: prompt and answer share the context."""


class AnthropicModelList(Answer):
    """GET /v1/models for Anthropic's clients: every model that answers messages, loaded or not."""

    data: list[AnthropicModel]
    has_more: bool
    """Whether there are more after this page, or before it where `before_id` was asked for."""
    first_id: str | None
    """The id of the page's first one; null if there is none."""
    last_id: str | None
    """The id of the page's last one; null if there is none."""


class CapabilityModelSpec(Answer):
    """One of GET /v1/chat/models, as kiapi has it."""

    name: str
    family: str
    domain: Literal["chat"]
    aliases: list[str]
    default: bool
    """Whether it answers requests that name no model."""
    features: list[str]
    """What it takes and can do."""


class LmStudioModel(Answer):
    """A model as LM Studio shows it."""

    id: str
    object: Literal["model"]
    type: Literal["llm", "vlm", "embeddings"]
    """`vlm` is a model that takes images."""
    publisher: str
    arch: str | None
    """The name of its architecture. Null until its files are known."""
    compatibility_type: Literal["mlx"]
    quantization: None
    """It is not told."""
    state: Literal["loaded", "loading", "not-loaded"]
    max_context_length: int | None
    """The tokens that its context may have. Null until it is known."""
    loaded_context_length: int | None
    """The same, of a model that is loaded; else null."""
    capabilities: list[Literal["tool_use", "vision"]]


class LmStudioModelList(Answer):
    """GET /api/v0/models: the models that chat and those that make embeddings, loaded or not."""

    object: Literal["list"]
    data: list[LmStudioModel]
