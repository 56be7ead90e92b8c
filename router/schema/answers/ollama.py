"""The answers of Ollama's API. Times and durations are nanoseconds, sizes bytes."""

from __future__ import annotations

from typing import Any, Literal

from lmx.router.http.responses import Answer


class OllamaFunction(Answer):
    """The function of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Answer):
    """A call that the model makes."""

    id: str
    function: OllamaFunction


class OllamaReply(Answer):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    """What the model thought before it answered."""
    tool_calls: list[OllamaCall] | None = None


class OllamaToken(Answer):
    """A token."""

    token: str
    """The token's text."""
    logprob: float
    """The natural logarithm of its probability; -9999 for impossible."""
    bytes: list[int]
    """Its bytes in UTF-8; a token may be a part of a character."""


class OllamaLogprob(OllamaToken):
    """A token of the answer."""

    top_logprobs: list[OllamaToken] | None = None
    """The likeliest tokens in its place, where they were asked for."""


class OllamaProgress(Answer):
    """What both kinds of answer have. In a stream only the last line is done, and has figures."""

    model: str
    """The name that the request gave."""
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    """Why the answer ended. `load` and `unload`: there was nothing to answer."""
    prompt_eval_count: int | None = None
    """Tokens of the prompt."""
    eval_count: int | None = None
    """Tokens of the answer, thinking included."""
    total_duration: int | None = None
    load_duration: int | None = None
    """How long the model was waited for."""
    prompt_eval_duration: int | None = None
    eval_duration: int | None = None
    logprobs: list[OllamaLogprob] | None = None
    """The tokens of the text, where they were asked for. In a stream each line has its own."""


class OllamaChatAnswer(OllamaProgress):
    """The answer of POST /api/chat, and a line of its stream."""

    message: OllamaReply


class OllamaGenerateAnswer(OllamaProgress):
    """The answer of POST /api/generate, and a line of its stream."""

    response: str
    thinking: str | None = None
    """What the model thought before it answered."""
    context: list[int] | None = None
    """The conversation, for the `context` of the next request. With `raw` there is none."""


class OllamaEmbedAnswer(Answer):
    """The answer of POST /api/embed."""

    model: str
    """The name that the request gave."""
    embeddings: list[list[float]]
    """A vector for each text, in the texts' order."""
    prompt_eval_count: int
    """Tokens of all texts."""
    total_duration: int
    load_duration: int
    """It is always 0: waiting for the model is part of the total."""


class OllamaEmbeddingsAnswer(Answer):
    """The answer of POST /api/embeddings."""

    embedding: list[float]


class OllamaDetails(Answer):
    """What is known of a model's files."""

    parent_model: str
    """The model that an adapter belongs to; else empty."""
    format: Literal["mlx"]
    family: str
    """The name of its architecture; empty until its files are known."""
    families: list[str]
    parameter_size: str
    """It is not counted, and always empty."""
    quantization_level: str
    """It is not told, and always empty."""


Capability = Literal["completion", "tools", "thinking", "vision", "audio", "embedding"]


class OllamaModel(Answer):
    """A model in a list."""

    name: str
    """Its id, with a tag."""
    model: str
    """The same."""
    modified_at: str
    """When its files were made."""
    size: int
    """How much its files take on the disk; 0 until they are known."""
    digest: str
    """It tells the model from others; it is not made of the files."""
    details: OllamaDetails
    context_length: int
    """In tokens; 0 where it is not known."""
    capabilities: list[Capability]
    """What it can, as POST /api/show says it."""


class OllamaModels(Answer):
    """The answer of GET /api/tags: every model."""

    models: list[OllamaModel]


class OllamaLoadedModel(Answer):
    """A model that is loaded."""

    name: str
    model: str
    size: int
    """The memory that it takes."""
    size_vram: int
    """The same: memory is unified."""
    digest: str
    details: OllamaDetails
    context_length: int
    """In tokens; 0 where it is not known."""
    expires_at: str | None = None
    """When it is unloaded if no request comes: in 2286 if it stays loaded. While it has a request,
    that is not known."""


class OllamaLoadedModels(Answer):
    """The answer of GET /api/ps: every loaded model."""

    models: list[OllamaLoadedModel]


class OllamaModelDetails(Answer):
    """The answer of POST /api/show."""

    modelfile: str
    """A comment: there is no such file."""
    parameters: str
    template: str
    license: str
    """All three are empty: they stand in the model's own files."""
    details: OllamaDetails
    model_info: dict[str, Any]
    """The architecture, and its `context_length`."""
    capabilities: list[Capability]
    """What it can. Of a chat model that was never loaded, `tools` is taken for granted, and
    `thinking` is not known yet."""
    modified_at: str


class OllamaProgressLine(Answer):
    """The answer of POST /api/pull, and the only line of its stream."""

    status: Literal["success"]
    """The model is there."""
