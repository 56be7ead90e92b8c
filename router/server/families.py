"""The routes of the API families besides OpenAI's first one: Anthropic's, OpenAI's Responses, and
Ollama's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmx.protocol.errors import ErrorCode
from lmx.router.http.api_family import ANTHROPIC, OLLAMA, RESPONSES
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.inference.messages import TokenCount, count_tokens, messages
from lmx.router.inference.ollama import (
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    ollama_chat,
    ollama_embed,
    ollama_embeddings,
    ollama_generate,
)
from lmx.router.inference.responses.creation import InputTokenCount, input_tokens, responses
from lmx.router.inference.responses.stored import (
    DeletedResponse,
    InputItemList,
    cancel_response,
    compact_response,
    delete_response,
    get_response,
    input_items,
)
from lmx.router.operators.ollama import (
    OllamaLoadedModels,
    OllamaModelDetails,
    OllamaModels,
    OllamaProgressLine,
    ollama_copy,
    ollama_create,
    ollama_delete,
    ollama_ps,
    ollama_pull,
    ollama_push,
    ollama_show,
    ollama_tags,
    ollama_version,
)
from lmx.router.operators.version import Version
from lmx.router.rendering.anthropic import AnthropicMessage, MessageEvent
from lmx.router.rendering.ollama import OllamaChatAnswer, OllamaGenerateAnswer
from lmx.router.rendering.responses.events import ResponseStreamEvent
from lmx.router.rendering.responses.state import ResponseObject
from lmx.router.schema.requests.anthropic.messages import CountTokensRequest, MessagesRequest
from lmx.router.schema.requests.ollama.chat import OllamaChatRequest
from lmx.router.schema.requests.ollama.embed import OllamaEmbeddingsRequest, OllamaEmbedRequest
from lmx.router.schema.requests.ollama.generate import OllamaGenerateRequest
from lmx.router.schema.requests.ollama.pull import OllamaPullRequest
from lmx.router.schema.requests.ollama.show import OllamaShowRequest
from lmx.router.schema.requests.responses.queries import InputItemsQuery, RetrieveQuery
from lmx.router.schema.requests.responses.responses import InputTokensRequest, ResponsesRequest

_CHAINED: Final = (ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND, ErrorCode.JOBS_UNAVAILABLE)
"""What becomes of a request that continues a response which does not exist."""


def other_families() -> Iterator[Endpoint]:
    """Yield all of them."""
    yield from _messages()
    yield from _responses()
    yield from _ollama()


def _messages() -> Iterator[Endpoint]:
    """Yield the routes of Anthropic's Messages API."""
    use = Access.INFERENCE
    yield Endpoint(
        "POST", "/v1/messages", messages, use, "Messages",
        "Answer a conversation, by Anthropic's API", request=MessagesRequest,
        answer=AnthropicMessage, streams=True, event=MessageEvent, family=ANTHROPIC,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/v1/messages/count_tokens", count_tokens, use, "Messages",
        "Count the tokens of a conversation, by Anthropic's API", request=CountTokensRequest,
        answer=TokenCount, family=ANTHROPIC,
    )  # fmt: skip


def _responses() -> Iterator[Endpoint]:
    """Yield the routes of OpenAI's Responses API."""
    use, tag, path = Access.INFERENCE, "Responses", "/v1/responses"
    missing = (ErrorCode.JOBS_UNAVAILABLE, ErrorCode.REQUEST_TOO_LARGE)
    yield Endpoint(
        "POST", path, responses, use, tag, "Answer a conversation, by OpenAI's Responses API",
        request=ResponsesRequest, answer=ResponseObject, streams=True, event=ResponseStreamEvent,
        errors=(*_CHAINED, ErrorCode.NOT_FOUND), family=RESPONSES,
    )  # fmt: skip
    yield Endpoint(
        "POST", f"{path}/input_tokens", input_tokens, use, tag,
        "Count the tokens of a response's prompt", request=InputTokensRequest,
        answer=InputTokenCount, errors=(*_CHAINED, ErrorCode.NOT_FOUND),
    )  # fmt: skip
    yield Endpoint(
        "POST", f"{path}/compact", compact_response, use, tag, "Not supported: a 404",
        errors=(ErrorCode.NOT_FOUND,),
    )  # fmt: skip
    yield Endpoint(
        "GET", f"{path}/{{id}}", get_response, use, tag, "Show a response that is kept",
        query=RetrieveQuery, answer=ResponseObject, streams=True, event=ResponseStreamEvent,
        errors=missing, family=RESPONSES,
    )  # fmt: skip
    yield Endpoint(
        "DELETE", f"{path}/{{id}}", delete_response, use, tag, "Remove a response",
        answer=DeletedResponse, errors=(ErrorCode.JOB_RUNS_ELSEWHERE, *missing),
    )  # fmt: skip
    yield Endpoint(
        "POST", f"{path}/{{id}}/cancel", cancel_response, use, tag, "Cancel a response",
        answer=ResponseObject, errors=(ErrorCode.JOB_RUNS_ELSEWHERE, *missing),
    )  # fmt: skip
    yield Endpoint(
        "GET", f"{path}/{{id}}/input_items", input_items, use, tag,
        "List the items of a response's input", query=InputItemsQuery, answer=InputItemList,
        errors=missing,
    )  # fmt: skip


def _ollama() -> Iterator[Endpoint]:
    """Yield the routes of Ollama's API."""
    use, tag = Access.INFERENCE, "Ollama"
    yield Endpoint(
        "POST", "/api/chat", ollama_chat, use, tag, "Answer a conversation, by Ollama's API",
        request=OllamaChatRequest, answer=OllamaChatAnswer, streams=True, event=OllamaChatAnswer,
        family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/api/generate", ollama_generate, use, tag, "Answer a prompt, by Ollama's API",
        request=OllamaGenerateRequest, answer=OllamaGenerateAnswer, streams=True,
        event=OllamaGenerateAnswer, family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/api/embed", ollama_embed, use, tag, "Embed texts, by Ollama's API",
        request=OllamaEmbedRequest, answer=OllamaEmbedAnswer, family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/api/embeddings", ollama_embeddings, use, tag,
        "Embed a text, by Ollama's older API", request=OllamaEmbeddingsRequest,
        answer=OllamaEmbeddingsAnswer, family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/api/tags", ollama_tags, use, tag, "List the models, by Ollama's API",
        answer=OllamaModels, family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/api/ps", ollama_ps, use, tag, "List the loaded models, by Ollama's API",
        answer=OllamaLoadedModels, family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/api/show", ollama_show, use, tag, "Show one model, by Ollama's API",
        request=OllamaShowRequest, answer=OllamaModelDetails, family=OLLAMA,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/api/pull", ollama_pull, use, tag,
        "Whether a model exists; Ollama would fetch it", request=OllamaPullRequest,
        answer=OllamaProgressLine, streams=True, event=OllamaProgressLine, family=OLLAMA,
    )  # fmt: skip
    for method, path, handler in (
        ("POST", "/api/create", ollama_create),
        ("POST", "/api/copy", ollama_copy),
        ("DELETE", "/api/delete", ollama_delete),
        ("POST", "/api/push", ollama_push),
    ):
        yield Endpoint(
            method, path, handler, use, tag, "Not supported: a 400 with the operator's way",
            errors=(ErrorCode.UNSUPPORTED_VALUE,), family=OLLAMA,
        )  # fmt: skip
    yield Endpoint(
        "GET", "/api/version", ollama_version, Access.OPEN, tag,
        "The version of Ollama's API that is spoken", answer=Version, family=OLLAMA, quiet=True,
    )  # fmt: skip
