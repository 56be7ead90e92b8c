"""What Kolosal's routes answer with: engines, and the health. Fields in ``_mb`` are MiB."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer

EngineState = Literal["loaded", "loading", "unloaded"]


class EngineParameters(Answer):
    """``n_ctx``: tokens, null until it is known. The others are as they were given: memory is
    unified, so they mean nothing."""

    n_ctx: int | None
    n_gpu_layers: int
    main_gpu_id: int


class EngineLine(Answer):
    """One engine in a list."""

    engine_id: str
    status: EngineState
    model_path: str


class EnginesAnswer(Answer):
    """GET /engines: every model."""

    engines: list[EngineLine]


class EngineAnswer(EngineLine):
    """POST /engines."""

    parameters: EngineParameters


class EngineMemory(Answer):
    """``model_size_mb``: the weights. ``context_size_mb``: what full contexts take together, as
    many as ``concurrency`` says. Both are 0 until they are known."""

    model_size_mb: int
    context_size_mb: int


class EnginePerformance(Answer):
    """``last_inference_tps``: tokens a second of the last answer, 0 before the first.
    ``total_requests``: since lmx was started, or since it was loaded where that is more."""

    last_inference_tps: float
    total_requests: int


class EngineStatusAnswer(EngineAnswer):
    """GET /engines/{id}/status. ``problem``: why it is not loaded, where something went wrong."""

    memory_usage: EngineMemory
    performance: EnginePerformance
    problem: str | None


class EngineRemoved(Answer):
    """DELETE /engines/{id}."""

    engine_id: str
    status: Literal["removed"]


class EngineCounts(Answer):
    """How many engines there are."""

    loaded: int
    unloaded: int
    total: int


class EngineSummary(Answer):
    """``state`` is lmx's word, which says more."""

    engine_id: str
    status: Literal["loaded", "unloaded"]
    state: str


class SystemFigures(Answer):
    """``memory_usage_mb``: of lmx and its models. ``cpu_usage_percent``: of the machine."""

    uptime_seconds: int
    memory_usage_mb: int
    cpu_usage_percent: float


class ServerHealth(Answer):
    """GET /health. ``degraded``: what is loaded answers, and nothing else can be loaded.
    ``reason``: why it is not healthy, else null."""

    status: Literal["healthy", "degraded", "unhealthy"]
    reason: str | None
    timestamp: int
    version: str
    engines: EngineCounts
    system: SystemFigures
    engines_summary: list[EngineSummary]
