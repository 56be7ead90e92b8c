"""GET /health, /v1/health, /status: whether a request has a chance right now, and why not."""

from __future__ import annotations

import time
from typing import Any, Final

import orjson
import psutil
from aiohttp import web

from lmx.protocol.states import WorkerState
from lmx.router.directory import Directory, can_serve, shown_state
from lmx.router.load_progress import progress_text
from lmx.router.services import SERVICES

_MIB: Final = 1024 * 1024
_LOADED: Final = frozenset({WorkerState.READY.value, WorkerState.DRAINING.value})


async def health(request: web.Request) -> web.Response:
    """Return 200 when the supervisor lives and some model can serve, else 503 with a reason."""
    services = request.app[SERVICES]
    directory = services.supervisor.latest
    reason = unhealthy_reason(directory, supervisor_alive=services.supervisor.alive)
    memory_bytes = psutil.Process().memory_info().rss
    if directory is not None:
        memory_bytes += sum(model.memory_bytes for model in directory.models)
    body = {
        "status": "healthy" if reason is None else "unhealthy",
        "reason": reason,
        "timestamp": int(time.time()),
        "version": services.spec.version,
        "system": {
            "uptime_seconds": int(time.monotonic() - services.started_at),
            "memory_usage_mb": memory_bytes // _MIB,
            "cpu_usage_percent": psutil.cpu_percent(interval=None),
        },
        **engines(directory),
    }
    return web.Response(
        status=200 if reason is None else 503,
        body=orjson.dumps(body),
        content_type="application/json",
        headers={} if reason is None else {"Retry-After": "5"},
    )


def unhealthy_reason(directory: Directory | None, *, supervisor_alive: bool) -> str | None:
    """Return why lmx can't do its work, or None when it can."""
    if not supervisor_alive:
        return "the supervisor does not answer: loaded models still serve, no other can be loaded"
    if directory is None:
        return "lmx is starting"
    if directory.snapshot.stopping:
        return "lmx is shutting down"
    if not directory.models:
        return "no model is configured"
    if not any(can_serve(model) for model in directory.models):
        problems = [
            f"{progress_text(model)}{f': {model.problem}' if model.problem else ''}"
            for model in directory.models
        ]
        return f"no model can serve ({'; '.join(problems)})"
    return None


def engines(directory: Directory | None) -> dict[str, Any]:
    """Return Kolosal's ``engines`` counts and ``engines_summary``, one engine a model."""
    models = () if directory is None else directory.models
    states = [shown_state(model) for model in models]
    loaded = sum(state in _LOADED for state in states)
    return {
        "engines": {
            "loaded": loaded,
            "unloaded": len(states) - loaded,
            "total": len(states),
        },
        "engines_summary": [
            {
                "engine_id": model.model_id,
                "status": "loaded" if state in _LOADED else "unloaded",
                "state": state,
            }
            for model, state in zip(models, states, strict=True)
        ],
    }
