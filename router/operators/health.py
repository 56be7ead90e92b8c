"""GET /health, /v1/health, /status: whether a request can be served right now, and why not."""

import time
from typing import Final, Literal

import psutil
from aiohttp import web

from lmx.protocol.states import ModelState
from lmx.router.http.local_paths import without_paths
from lmx.router.http.responses import Answer, json_value, to_mb
from lmx.router.services import SERVICES, Services, directory_without_key
from lmx.router.supervisor.directory import Directory, can_serve
from lmx.router.supervisor.model_queues import progress_text

_NONE_SERVES: Final = "no model can serve"


class EngineCounts(Answer):
    """How many engines there are."""

    loaded: int
    unloaded: int
    total: int


class EngineSummary(Answer):
    """An engine as the health shows it."""

    engine_id: str
    status: Literal["loaded", "unloaded"]
    state: str
    """lmx's own name for its state, which is finer than `status`."""


class SystemFigures(Answer):
    """Figures of the machine and of lmx."""

    uptime_seconds: int
    memory_usage_mb: int
    """What lmx and its models take together."""
    cpu_usage_percent: float
    """The use of the whole machine's processor."""


class ServerHealth(Answer):
    """The answer of GET /health."""

    status: Literal["healthy", "degraded", "unhealthy"]
    """`degraded` means that the loaded models answer, and no other can be loaded."""
    reason: str | None
    """Why it is not healthy. Null if it is."""
    timestamp: int
    version: str
    engines: EngineCounts
    system: SystemFigures
    engines_summary: list[EngineSummary]


async def health(request: web.Request) -> web.Response:
    """Return 200 if the supervisor is alive and some model can serve, else 503 with a reason.
    Degraded means that the loaded models answer, and no other can be loaded."""
    services = request.app[SERVICES]
    directory = services.supervisor.latest
    seen, names = directory_without_key(request)
    reason = unhealthy_reason(directory, silent=services.supervisor.silent)
    memory_bytes = psutil.Process().memory_info().rss
    if directory is not None:
        memory_bytes += sum(model.memory_bytes for model in directory.models)
    engines = engine_summaries(directory)
    loaded = sum(engine["status"] == "loaded" for engine in engines)
    answer = ServerHealth(
        status=_status(directory, reason),
        reason=_shown_reason(directory, reason, names=names and seen is directory),
        timestamp=int(time.time()),
        version=services.spec.version,
        engines=EngineCounts(loaded=loaded, unloaded=len(engines) - loaded, total=len(engines)),
        system=SystemFigures(
            uptime_seconds=int(time.time() - services.counts.since_s),
            memory_usage_mb=to_mb(memory_bytes),
            cpu_usage_percent=psutil.cpu_percent(interval=None),
        ),
        engines_summary=engine_summaries(seen) if names else [],
    )
    response = json_value(answer, 200 if reason is None else 503)
    if reason is not None:
        response.headers["Retry-After"] = "5"
    return response


def current_health(
    services: Services, *, names: bool
) -> tuple[Literal["healthy", "degraded", "unhealthy"], str | None]:
    """Return how lmx is, and why if it is not healthy. Without ``names`` the reason names no
    models."""
    directory = services.supervisor.latest
    reason = unhealthy_reason(directory, silent=services.supervisor.silent)
    return _status(directory, reason), _shown_reason(directory, reason, names=names)


def _shown_reason(directory: Directory | None, reason: str | None, *, names: bool) -> str | None:
    """Return why lmx is not healthy for who needs no key."""
    if reason is not None and reason.startswith(_NONE_SERVES) and not names:
        return f"{_NONE_SERVES}: send an API key to see why"
    shown = reason or no_loads(directory)
    models = () if directory is None else directory.models
    return None if shown is None else without_paths(shown, (model.source for model in models))


def unhealthy_reason(directory: Directory | None, *, silent: bool) -> str | None:
    """Return why lmx can't do its work, or None when it can. ``silent`` says that its supervisor
    does not answer."""
    if silent:
        return "the supervisor does not answer: loaded models still serve, no other can be loaded"
    if directory is None:
        return "lmx is starting"
    if directory.snapshot.stopping:
        return "lmx is shutting down"
    if directory.snapshot.drained:
        return "this machine was drained by an operator"
    hindrance = no_loads(directory)
    if hindrance is not None and not any(model.state.loaded for model in directory.models):
        return f"no model is loaded, and {hindrance}"
    if not directory.models:
        return "no model is configured"
    # A model that somebody has to fix first has no chance either, though a request may try it.
    if not any(can_serve(one) and one.state is not ModelState.FAILED for one in directory.models):
        problems = [
            f"{progress_text(model)}{f': {model.problem}' if model.problem else ''}"
            for model in directory.models
        ]
        return f"{_NONE_SERVES} ({'; '.join(problems)})"
    return None


def no_loads(directory: Directory | None) -> str | None:
    """Return why no model at all can be loaded just now; None if models can be loaded."""
    return None if directory is None else directory.snapshot.no_loads


def _status(
    directory: Directory | None, reason: str | None
) -> Literal["healthy", "degraded", "unhealthy"]:
    if reason is None:
        return "healthy" if no_loads(directory) is None else "degraded"
    if directory is None or directory.snapshot.stopping:
        return "unhealthy"
    # Without a supervisor the loaded models still answer, as they do while nothing can be loaded.
    return "degraded" if any(model.state.loaded for model in directory.models) else "unhealthy"


def engine_summaries(directory: Directory | None) -> list[EngineSummary]:
    """Return Kolosal's summary, with one engine for each model."""
    models = () if directory is None else directory.bases
    return [
        EngineSummary(
            engine_id=model.model_id,
            status="loaded" if model.state.loaded else "unloaded",
            state=model.state.value,
        )
        for model in models
    ]
