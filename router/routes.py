"""Every route of the API, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmx.router.admin import reload_config
from lmx.router.chat import chat_completions
from lmx.router.completions import completions
from lmx.router.embeddings import embeddings
from lmx.router.endpoint import Access, Endpoint
from lmx.router.health import health
from lmx.router.metrics import admin_metrics, metrics
from lmx.router.models import get_model, list_models
from lmx.router.rerank import rerank
from lmx.router.schemas_chat import ChatRequest
from lmx.router.schemas_completions import CompletionRequest
from lmx.router.tokenize import detokenize, tokenize

_PREFIXES: Final = ("/v1", "/v3")
"""OpenAI's, and OpenVINO Model Server's name for the same."""


def _inference() -> Iterator[Endpoint]:
    use = Access.INFERENCE
    for prefix in _PREFIXES:
        yield Endpoint(
            "POST", f"{prefix}/chat/completions", chat_completions, use, "Chat",
            "Answer a conversation", request=ChatRequest, streams=True,
        )  # fmt: skip
        yield Endpoint(
            "POST", f"{prefix}/completions", completions, use, "Completions",
            "Go on with a text, or several", request=CompletionRequest, streams=True,
        )  # fmt: skip
        yield Endpoint("POST", f"{prefix}/embeddings", embeddings, use, "Embeddings", "Embed texts")
        yield Endpoint("GET", f"{prefix}/models", list_models, use, "Models", "List the models")
        yield Endpoint(
            "GET", f"{prefix}/models/{{id:.+}}", get_model, use, "Models", "Show one model"
        )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        yield Endpoint("POST", path, rerank, use, "Rerank", "Sort documents by a query")
    yield Endpoint("POST", "/tokenize", tokenize, use, "Tokens", "Turn text into tokens")
    yield Endpoint("POST", "/detokenize", detokenize, use, "Tokens", "Turn tokens into text")


def _operation() -> Iterator[Endpoint]:
    for path in ("/health", "/v1/health", "/status"):
        yield Endpoint(
            "GET", path, health, Access.OPEN, "Health", "Whether lmx can serve", quiet=True
        )
    yield Endpoint(
        "GET", "/metrics", metrics, Access.LOCAL, "Metrics", "For Prometheus", quiet=True
    )
    yield Endpoint(
        "GET", "/admin/metrics", admin_metrics, Access.ADMIN, "Metrics", "For Prometheus",
        quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/config/reload", reload_config, Access.ADMIN, "Administration",
        "Read the configuration again",
    )  # fmt: skip


ROUTES: Final = (*_inference(), *_operation())
