"""Every route of the API, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lmx.protocol.errors import ErrorCode
from lmx.router.admin_requests import cancel_request, list_requests
from lmx.router.answer_chat import ChatCompletion, ChatCompletionChunk
from lmx.router.answer_completions import TextCompletion, TextCompletionChunk
from lmx.router.answer_engines import ServerHealth
from lmx.router.answer_jobs import (
    CancelledJob,
    DeletedJob,
    JobList,
    JobWithResult,
    LiveRequestList,
)
from lmx.router.answer_models import CapabilityModelSpec, ModelList, ModelObject
from lmx.router.answer_operation import (
    EventLine,
    KillAnswer,
    LogLine,
    MetricsAnswer,
    WorkersAnswer,
)
from lmx.router.answer_tasks import EmbeddingList, Ranking, ScoreList, Tokens, TokensText
from lmx.router.api_document import openapi_document
from lmx.router.chat import chat_completions
from lmx.router.completions import completions
from lmx.router.docs import docs_page, docs_page_style, docs_script, docs_start, docs_style
from lmx.router.embeddings import embeddings
from lmx.router.endpoint import Access, Endpoint
from lmx.router.event_routes import stream_events
from lmx.router.health import health
from lmx.router.jobs import delete_job, get_job, list_jobs
from lmx.router.log_routes import stream_log
from lmx.router.metrics import admin_metrics, admin_metrics_json, metrics
from lmx.router.models import get_model, list_chat_models, list_models
from lmx.router.rerank import rerank
from lmx.router.routes_admin import administration, engines
from lmx.router.schemas_chat import ChatRequest
from lmx.router.schemas_completions import CompletionRequest
from lmx.router.schemas_jobs import JobsQuery
from lmx.router.schemas_operation import EventsQuery, LogsQuery
from lmx.router.schemas_tasks import (
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
    TokenizerInfoQuery,
)
from lmx.router.score import score
from lmx.router.tokenize import detokenize, tokenize, tokenizer_info
from lmx.router.worker_routes import kill_worker, list_workers

_PREFIXES: Final = ("/v1", "/v3")
"""OpenAI's, and OpenVINO Model Server's name for the same."""


def _inference() -> Iterator[Endpoint]:
    use = Access.INFERENCE
    for prefix in _PREFIXES:
        yield Endpoint(
            "POST", f"{prefix}/chat/completions", chat_completions, use, "Chat",
            "Answer a conversation", request=ChatRequest, answer=ChatCompletion,
            streams=True, event=ChatCompletionChunk,
        )  # fmt: skip
        yield Endpoint(
            "POST", f"{prefix}/completions", completions, use, "Completions",
            "Go on with a text, or several", request=CompletionRequest, answer=TextCompletion,
            streams=True, event=TextCompletionChunk,
        )  # fmt: skip
        yield Endpoint(
            "POST", f"{prefix}/embeddings", embeddings, use, "Embeddings", "Embed texts",
            request=EmbeddingRequest, answer=EmbeddingList,
        )  # fmt: skip
        yield Endpoint(
            "GET", f"{prefix}/models", list_models, use, "Models", "List the models",
            answer=ModelList,
        )  # fmt: skip
        yield Endpoint(
            "GET", f"{prefix}/models/{{id:.+}}", get_model, use, "Models", "Show one model",
            answer=ModelObject,
        )  # fmt: skip
    yield Endpoint(
        "GET", "/v1/chat/models", list_chat_models, use, "Models", "List the models that chat",
        answer=list[CapabilityModelSpec],
    )  # fmt: skip
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        yield Endpoint(
            "POST", path, rerank, use, "Rerank", "Sort documents by a query",
            request=RerankRequest, answer=Ranking,
        )  # fmt: skip
    for path in ("/score", "/v1/score"):
        yield Endpoint(
            "POST", path, score, use, "Rerank", "Score pairs of texts",
            request=ScoreRequest, answer=ScoreList,
        )  # fmt: skip
    yield Endpoint(
        "GET", "/tokenizer_info", tokenizer_info, use, "Tokens", "Show a model's tokenizer",
        query=TokenizerInfoQuery, answer=dict[str, Any],
        errors=(
            ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_LOADING, ErrorCode.MODEL_LOAD_FAILED,
            ErrorCode.QUEUE_FULL, ErrorCode.WORKER_CRASHED, ErrorCode.WORKER_LOST,
        ),
    )  # fmt: skip
    yield Endpoint(
        "POST", "/tokenize", tokenize, use, "Tokens", "Turn text into tokens",
        request=TokenizeRequest, answer=Tokens,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/detokenize", detokenize, use, "Tokens", "Turn tokens into text",
        request=DetokenizeRequest, answer=TokensText,
    )  # fmt: skip


def _jobs() -> Iterator[Endpoint]:
    use, tag = Access.INFERENCE, "Jobs"
    yield Endpoint(
        "GET", "/v1/jobs", list_jobs, use, tag, "List generations, under way and ended",
        query=JobsQuery, answer=JobList, errors=(ErrorCode.JOBS_UNAVAILABLE,),
    )  # fmt: skip
    yield Endpoint(
        "GET", "/v1/jobs/{id}", get_job, use, tag, "Show one, with its result",
        answer=JobWithResult, errors=(ErrorCode.NOT_FOUND, ErrorCode.JOBS_UNAVAILABLE),
    )  # fmt: skip
    yield Endpoint(
        "DELETE", "/v1/jobs/{id}", delete_job, use, tag,
        "Cancel one that is under way, remove one that has ended",
        answer=CancelledJob | DeletedJob,
        errors=(
            ErrorCode.NOT_FOUND, ErrorCode.JOB_RUNS_ELSEWHERE, ErrorCode.JOBS_UNAVAILABLE,
        ),
    )  # fmt: skip
    use, tag = Access.ADMIN, "Administration"
    yield Endpoint(
        "GET", "/admin/requests", list_requests, use, tag, "List the requests under way",
        answer=LiveRequestList,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/requests/{id}/cancel", cancel_request, use, tag,
        "Cancel a request that is under way",
        answer=LiveRequestList, errors=(ErrorCode.NOT_FOUND,),
    )  # fmt: skip


def _operation() -> Iterator[Endpoint]:
    for path in ("/health", "/v1/health", "/status"):
        yield Endpoint(
            "GET", path, health, Access.OPEN, "Health", "Whether lmx can serve",
            answer=ServerHealth, unwell=503, quiet=True,
        )  # fmt: skip
    yield Endpoint(
        "GET", "/metrics", metrics, Access.LOCAL, "Metrics", "For Prometheus", quiet=True
    )
    yield Endpoint(
        "GET", "/admin/metrics", admin_metrics, Access.METRICS, "Metrics", "For Prometheus",
        quiet=True,
    )  # fmt: skip


def _description() -> Iterator[Endpoint]:
    use, tag = Access.OPEN, "Description"
    yield Endpoint(
        "GET", "/openapi.json", openapi_document, use, tag, "This document",
        answer=dict[str, Any], quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/docs", docs_page, use, tag, "A page to read it with",
        media="text/html", quiet=True,
    )  # fmt: skip
    for name, handler, media in (
        ("page.css", docs_page_style, "text/css"),
        ("start.js", docs_start, "text/javascript"),
        ("swagger-ui.css", docs_style, "text/css"),
        ("swagger-ui-bundle.js", docs_script, "text/javascript"),
    ):
        yield Endpoint(
            "GET", f"/docs/{name}", handler, use, tag, "A file of the page",
            media=media, quiet=True,
        )  # fmt: skip


def _watching() -> Iterator[Endpoint]:
    use, tag = Access.ADMIN, "Operation"
    yield Endpoint(
        "GET", "/admin/metrics/json", admin_metrics_json, Access.METRICS, "Metrics",
        "For dashboards",
        answer=MetricsAnswer, quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/admin/workers", list_workers, use, tag, "List the models' processes",
        answer=WorkersAnswer,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/workers/{id:.+}/kill", kill_worker, use, tag, "Kill a model's process",
        answer=KillAnswer, errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_LOADED),
    )  # fmt: skip
    # Quiet: whoever follows must hold up no router's end.
    yield Endpoint(
        "GET", "/admin/logs/{model:.+}", stream_log, use, tag, "Follow a log",
        query=LogsQuery, streams=True, event=LogLine,
        errors=(ErrorCode.MODEL_NOT_FOUND,), quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/admin/events", stream_events, use, tag, "Follow what happens",
        query=EventsQuery, streams=True, event=EventLine,
        errors=(ErrorCode.MODEL_NOT_FOUND,), quiet=True,
    )  # fmt: skip


ROUTES: Final = (
    *_inference(),
    *_jobs(),
    *_operation(),
    *administration(),
    *engines(),
    *_watching(),
    *_description(),
)
