"""The answers of Kolosal's routes: engines, and the health. Fields in ``_mb`` are MiB."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer

EngineState = Literal["loaded", "loading", "unloaded"]


class EngineParameters(Answer):
    """The parameters of an engine."""

    n_ctx: int | None
    """How many tokens its context has. Null until it is known."""
    n_gpu_layers: int
    """The value of the request. Memory is unified, so it has no effect."""
    main_gpu_id: int
    """The value of the request. There is one GPU, so it has no effect."""


class EngineLine(Answer):
    """One engine in a list."""

    engine_id: str
    status: EngineState
    model_path: str


class EnginesAnswer(Answer):
    """The answer of GET /engines: every model."""

    engines: list[EngineLine]


class EngineAnswer(EngineLine):
    """The answer of POST /engines."""

    parameters: EngineParameters


class EngineMemory(Answer):
    """The memory of an engine."""

    model_size_mb: int
    """What the weights take. 0 until it is known."""
    context_size_mb: int
    """What as many full contexts as `concurrency` says take together. 0 until it is known."""


class EnginePerformance(Answer):
    """What an engine has done."""

    last_inference_tps: float
    """The tokens per second of the last answer; 0 before the first."""
    total_requests: int
    """Its requests since lmx was started, or since it was loaded if that number is higher."""


class EngineStatusAnswer(EngineAnswer):
    """The answer of GET /engines/{id}/status."""

    memory_usage: EngineMemory
    performance: EnginePerformance
    problem: str | None
    """Why it is not loaded, if something went wrong."""


class EngineRemoved(Answer):
    """The answer of DELETE /engines/{id}."""

    engine_id: str
    status: Literal["removed"]


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
    """lmx's own word for its state, which tells more than `status`."""


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
