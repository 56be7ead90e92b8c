"""The routes, and nothing else."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from lmx.router.admin import reload_config
from lmx.router.chat import chat_completions
from lmx.router.completions import completions
from lmx.router.embeddings import embeddings
from lmx.router.health import health
from lmx.router.metrics import admin_metrics, metrics
from lmx.router.middleware import add_headers, make_middleware
from lmx.router.models import get_model, list_models
from lmx.router.rerank import rerank
from lmx.router.services import SERVICES, Services
from lmx.router.tokenize import detokenize, tokenize

_PREFIXES: Final = ("/v1", "/v3")
"""OpenAI's, and OpenVINO Model Server's name for the same."""


def make_app(services: Services) -> web.Application:
    """Return the application. Sizes of bodies are limited where they are read, not here."""
    app = web.Application(
        middlewares=[make_middleware(services.traffic, services.spec.max_requests)]
    )
    app[SERVICES] = services
    app.on_response_prepare.append(add_headers)
    for prefix in _PREFIXES:
        app.router.add_post(f"{prefix}/chat/completions", chat_completions)
        app.router.add_post(f"{prefix}/completions", completions)
        app.router.add_post(f"{prefix}/embeddings", embeddings)
        app.router.add_get(f"{prefix}/models", list_models)
        app.router.add_get(f"{prefix}/models/{{id:.+}}", get_model)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        app.router.add_post(path, rerank)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)
    for path in ("/health", "/v1/health", "/status"):
        app.router.add_get(path, health)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/admin/metrics", admin_metrics)
    app.router.add_post("/admin/config/reload", reload_config)
    return app
