"""Every route of the API, as one table. Some functions return a part of it: Opta-LMX's routes of
administration, and Kolosal's routes of engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lmx.protocol.errors import ErrorCode
from lmx.router.console.api_page import (
    docs_page,
    docs_page_style,
    docs_script,
    docs_start,
    docs_style,
)
from lmx.router.console.files import icon, page_file
from lmx.router.console.front import Front, front
from lmx.router.console.markdown import MarkdownTrees, render_markdown
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.inference.audio import speech, transcriptions, translations
from lmx.router.inference.chat import chat_completions
from lmx.router.inference.completions import completions
from lmx.router.inference.embeddings import EmbeddingList, embeddings
from lmx.router.inference.rerank import Ranking, rerank
from lmx.router.inference.score import ScoreList, score
from lmx.router.inference.tokenize import Tokens, TokensText, detokenize, tokenize, tokenizer_info
from lmx.router.operators.catalog import (
    AnthropicModel,
    AnthropicModelList,
    CapabilityModelSpec,
    LmStudioModelList,
    ModelList,
    ModelObject,
    get_model,
    list_chat_models,
    list_lm_studio_models,
    list_models,
)
from lmx.router.operators.config import ReloadAnswer, reload_config
from lmx.router.operators.downloads import (
    DOWNLOAD_ERRORS,
    AvailableAnswer,
    DownloadAnswer,
    DownloadProgress,
    DownloadsAnswer,
    available_models,
    cancel_download,
    download_progress,
    get_download,
    list_downloads,
    start_download,
)
from lmx.router.operators.engines import (
    EngineAnswer,
    EngineRemoved,
    EnginesAnswer,
    EngineStatusAnswer,
    add_engine,
    engine_status,
    list_engines,
    remove_engine,
)
from lmx.router.operators.events import EventLine, stream_events
from lmx.router.operators.health import ServerHealth, health
from lmx.router.operators.jobs import (
    CancelledJob,
    DeletedJob,
    JobList,
    JobWithResult,
    LiveRequestList,
    cancel_request,
    delete_job,
    get_job,
    list_jobs,
    list_requests,
)
from lmx.router.operators.logs import LogLine, stream_log
from lmx.router.operators.metrics import MetricsAnswer, admin_metrics, admin_metrics_json, metrics
from lmx.router.operators.models import (
    LOAD_ERRORS,
    DeleteAnswer,
    LoadAnswer,
    UnloadAnswer,
    delete_model,
    load_model,
    unload_model,
)
from lmx.router.operators.status import (
    HealthAnswer,
    MemoryAnswer,
    ModelsAnswer,
    StatusAnswer,
    admin_health,
    admin_memory,
    admin_models,
    admin_status,
)
from lmx.router.operators.version import Version, ping, version
from lmx.router.operators.workers import KillAnswer, WorkersAnswer, kill_worker, list_workers
from lmx.router.rendering.chat import ChatCompletion, ChatCompletionChunk
from lmx.router.rendering.text import TextCompletion, TextCompletionChunk
from lmx.router.rendering.transcripts import (
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    VerboseTranscription,
)
from lmx.router.schema.openapi.document import openapi_document
from lmx.router.schema.requests.audio import TranscriptionRequest, TranslationRequest
from lmx.router.schema.requests.chat import ChatRequest
from lmx.router.schema.requests.completions import CompletionRequest
from lmx.router.schema.requests.console import MarkdownRequest
from lmx.router.schema.requests.models import ModelsQuery
from lmx.router.schema.requests.operators import (
    DeleteQuery,
    DownloadRequest,
    EngineRequest,
    EventsQuery,
    JobsQuery,
    LoadRequest,
    LogsQuery,
    UnloadRequest,
)
from lmx.router.schema.requests.tasks import (
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
    TokenizerInfoQuery,
)
from lmx.router.server.families import other_families


def administration() -> Iterator[Endpoint]:
    """Yield Opta-LMX's routes of /admin, except for the metrics."""
    use, tag = Access.ADMIN, "Administration"
    yield Endpoint(
        "GET", "/admin/health", admin_health, Access.OPEN, "Health", "Whether all is well",
        answer=HealthAnswer, degraded_status=503, quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/admin/status", admin_status, use, tag, "Show how lmx is", answer=StatusAnswer
    )
    yield Endpoint(
        "GET", "/admin/memory", admin_memory, use, tag, "Show who has the memory",
        answer=MemoryAnswer,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/config/reload", reload_config, use, tag, "Read the configuration again",
        answer=ReloadAnswer, errors=(ErrorCode.CONFIG_INVALID,),
    )  # fmt: skip
    yield Endpoint(
        "GET", "/admin/models", admin_models, use, tag, "Show all models, loaded or not",
        answer=ModelsAnswer,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/models/load", load_model, use, tag, "Load a model, and wait",
        request=LoadRequest, answer=LoadAnswer, errors=LOAD_ERRORS,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/admin/models/unload", unload_model, use, tag, "Unload a model, and wait",
        request=UnloadRequest, answer=UnloadAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_LOADED),
    )  # fmt: skip
    yield from _files()


def _files() -> Iterator[Endpoint]:
    use, tag, path = Access.ADMIN, "Downloads", "/admin/models/download"
    yield Endpoint(
        "GET", "/admin/models/available", available_models, use, tag,
        "List the models on this machine's disk", answer=list[AvailableAnswer],
    )  # fmt: skip
    yield Endpoint(
        "POST", path, start_download, use, tag, "Download a model from the hub",
        request=DownloadRequest, answer=DownloadAnswer, errors=DOWNLOAD_ERRORS,
    )  # fmt: skip
    yield Endpoint(
        "GET", path, list_downloads, use, tag, "List the downloads", answer=DownloadsAnswer
    )
    yield Endpoint(
        "GET", f"{path}/{{download_id}}", get_download, use, tag, "Show a download",
        answer=DownloadAnswer,
    )  # fmt: skip
    # Quiet: a follower must not hold up the end of a router.
    yield Endpoint(
        "GET", f"{path}/{{download_id}}/progress", download_progress, use, tag,
        "Follow a download", streams=True, event=DownloadProgress, quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "DELETE", f"{path}/{{download_id}}", cancel_download, use, tag, "Cancel a download",
        answer=DownloadAnswer,
    )  # fmt: skip
    # This comes after the one above, because its path also matches that one's.
    yield Endpoint(
        "DELETE", "/admin/models/{id:.+}", delete_model, use, tag, "Delete a model's files",
        query=DeleteQuery, answer=DeleteAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_LOADED, ErrorCode.NOT_DELETABLE),
    )  # fmt: skip


def engines() -> Iterator[Endpoint]:
    """Yield Kolosal's routes about engines."""
    use, tag = Access.ADMIN, "Engines"
    missing = (ErrorCode.MODEL_NOT_FOUND,)
    yield Endpoint(
        "GET", "/engines", list_engines, use, tag, "List the engines", answer=EnginesAnswer
    )
    yield Endpoint(
        "POST", "/engines", add_engine, use, tag, "Add a model, and load it",
        request=EngineRequest, answer=EngineAnswer, status=201,
        errors=(ErrorCode.MODEL_EXISTS, *LOAD_ERRORS),
    )  # fmt: skip
    yield Endpoint(
        "GET", "/engines/{id:.+}/status", engine_status, use, tag, "Show an engine",
        answer=EngineStatusAnswer, errors=missing,
    )  # fmt: skip
    yield Endpoint(
        "DELETE", "/engines/{id:.+}", remove_engine, use, tag, "Remove an engine that was added",
        answer=EngineRemoved, errors=(*missing, ErrorCode.MODEL_CONFIGURED),
    )  # fmt: skip


_PREFIXES: Final = ("/v1", "/v3")
"""OpenAI's prefix, and OpenVINO Model Server's name for the same routes."""


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
            "Complete one or more prompts", request=CompletionRequest, answer=TextCompletion,
            streams=True, event=TextCompletionChunk,
        )  # fmt: skip
        yield Endpoint(
            "POST", f"{prefix}/embeddings", embeddings, use, "Embeddings", "Embed texts",
            request=EmbeddingRequest, answer=EmbeddingList,
        )  # fmt: skip
        yield Endpoint(
            "GET", f"{prefix}/models", list_models, use, "Models", "List the models",
            query=ModelsQuery, answer=ModelList | AnthropicModelList,
        )  # fmt: skip
        yield Endpoint(
            "GET", f"{prefix}/models/{{id:.+}}", get_model, use, "Models", "Show one model",
            answer=ModelObject | AnthropicModel,
        )  # fmt: skip
    yield Endpoint(
        "GET", "/v1/chat/models", list_chat_models, use, "Models", "List the models that chat",
        answer=list[CapabilityModelSpec],
    )  # fmt: skip
    yield Endpoint(
        "GET", "/api/v0/models", list_lm_studio_models, use, "Models",
        "List the models, by LM Studio's API", answer=LmStudioModelList,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/v1/audio/transcriptions", transcriptions, use, "Audio", "Transcribe speech",
        form=TranscriptionRequest, answer=Transcription | VerboseTranscription, also="text/plain",
        streams=True, event=TranscriptDelta | TranscriptDone,
    )  # fmt: skip
    yield Endpoint(
        "POST", "/v1/audio/translations", translations, use, "Audio",
        "Transcribe speech into English", form=TranslationRequest,
        answer=Transcription | VerboseTranscription, also="text/plain",
    )  # fmt: skip
    yield Endpoint(
        "POST", "/v1/audio/speech", speech, use, "Audio", "Not supported: a 404",
        errors=(ErrorCode.NOT_FOUND,),
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


def _front() -> Iterator[Endpoint]:
    use, tag = Access.OPEN, "Health"
    yield Endpoint(
        "GET", "/", front, use, tag, "What this server is; a page for browsers", answer=Front,
        also="text/html", quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/version", version, use, tag, "lmx's version", answer=Version, quiet=True
    )
    yield Endpoint("GET", "/ping", ping, use, tag, "Whether the router is alive", quiet=True)
    yield Endpoint(
        "GET", "/favicon.ico", icon, use, "Description", "The picture of the page",
        media="image/svg+xml", quiet=True,
    )  # fmt: skip
    yield Endpoint(
        "GET", "/ui/{file}", page_file, use, "Description", "A file of the page",
        media="text/javascript", also="text/css", errors=(ErrorCode.NOT_FOUND,), quiet=True,
    )  # fmt: skip
    # Quiet: it is asked for several times a second while an answer streams, and no model works.
    yield Endpoint(
        "POST", "/ui/markdown", render_markdown, Access.INFERENCE, "Description",
        "Render Markdown, for the page", request=MarkdownRequest, answer=MarkdownTrees,
        errors=(ErrorCode.QUEUE_FULL,), quiet=True,
    )  # fmt: skip


def _operation() -> Iterator[Endpoint]:
    for path in ("/health", "/healthz", "/v1/health", "/status"):
        yield Endpoint(
            "GET", path, health, Access.OPEN, "Health", "Whether lmx can serve",
            answer=ServerHealth, degraded_status=503, quiet=True,
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
    # Quiet: a follower must not hold up the end of a router.
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
    *other_families(),
    *_jobs(),
    *_front(),
    *_operation(),
    *administration(),
    *engines(),
    *_watching(),
    *_description(),
)
