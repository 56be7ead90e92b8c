"""GET /admin/status and /admin/status/full, /admin/models, /admin/memory and /admin/health: the
state of lmx.

All except the health show live figures of the supervisor, and are a 503 while it does not answer.
None of them wakes a model.
"""

import time
from typing import Literal, NotRequired

from aiohttp import web

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.status import ModelStatus, SupervisorStatus
from lmx.protocol.states import MemoryPressure, SupervisorState
from lmx.protocol.wire.codec import to_map
from lmx.router.http.responses import Answer, json_value, to_gb
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.operators.health import no_loads, unhealthy_reason
from lmx.router.services import SERVICES
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import live_status


class MachineMemory(Answer):
    """The machine's memory, and lmx's share of it."""

    total_gb: float
    used_gb: float
    available_gb: float
    usage_percent: float
    threshold_percent: int
    """Above this share in use, nothing is loaded and idle models are unloaded."""
    pressure: Literal["none", "soft", "hard"]
    budget_gb: float
    """What all models may take together."""
    reserved_gb: float
    """The part of the budget that is taken."""


class StatusAnswer(Answer):
    """The answer of GET /admin/status."""

    version: str
    uptime_seconds: float
    loaded_models: int
    models: list[str]
    """The models that are loaded."""
    memory: MachineMemory
    state: Literal["running", "stopping"]
    requests_active: int
    """Requests that run, of all models."""
    requests_waiting: int
    """Requests that wait, of all models."""


class ModelLine(Answer):
    """What is known of any model."""

    id: str
    loaded: bool
    state: str
    source: str
    aliases: list[str]
    kind: str | None
    context_length: int | None
    pinned: bool
    problem: str | None
    """Why it can't be loaded, or why its last load failed."""


class LoadedModel(ModelLine):
    """A model in memory."""

    memory_gb: float
    """What its process takes now."""
    loaded_at: float | None
    use_batching: bool
    request_count: int
    """Its requests since lmx was started, or since it was loaded if that number is higher."""
    last_used_at: float | None
    """When it was last used. Null if it has had no request."""
    requests_active: int
    requests_queued: int
    expires_in_s: float | None
    """When it will be unloaded if no request comes. Null if it stays loaded."""


class UnloadedModel(ModelLine):
    """A model that is not in memory."""

    progress: float | None
    """How far its load is, from 0 to 1. Null if it is not being loaded."""


class ModelsAnswer(Answer):
    """The answer of GET /admin/models."""

    loaded: list[LoadedModel]
    count: int
    """How many models are loaded."""
    available: list[UnloadedModel]


class ModelMemory(Answer):
    """One model's memory."""

    memory_gb: float
    loaded: bool
    peak_gb: float
    """The most that it has taken."""
    reserved_gb: float
    """The part of the budget that is reserved for it."""


class MemoryAnswer(Answer):
    """The answer of GET /admin/memory. The fields are those of :class:`MachineMemory`."""

    total_unified_memory_gb: float
    used_gb: float
    available_gb: float
    threshold_percent: int
    budget_gb: float
    reserved_gb: float
    models: dict[str, ModelMemory]


class HealthAnswer(Answer):
    """The answer of GET /admin/health."""

    status: Literal["ok", "degraded"]
    version: str
    reason: NotRequired[str | None]
    """Why it is degraded. Left out if it is ok."""


async def admin_status(request: web.Request) -> web.Response:
    """Return a summary of everything."""
    services = request.app[SERVICES]
    status = await live_status(services.supervisor)
    loaded = [model.model for model in status.workers if model.state.loaded]
    return json_value(
        StatusAnswer(
            version=services.spec.version,
            uptime_seconds=round(time.time() - services.counts.since_s, 3),
            loaded_models=len(loaded),
            models=loaded,
            memory=machine_memory(status.supervisor),
            state="stopping" if status.supervisor.state is SupervisorState.STOPPING else "running",
            requests_active=sum(model.requests_active for model in status.workers),
            requests_waiting=sum(model.requests_queued for model in status.workers)
            + services.queues.all_waiting,
        )
    )


async def admin_full_status(request: web.Request) -> web.Response:
    """Return everything that the supervisor reports, as ``lmx status --json`` prints it
    (docs/status.schema.json)."""
    return json_value(to_map(await live_status(request.app[SERVICES].supervisor)))


async def admin_models(request: web.Request) -> web.Response:
    """Return every model: those in memory, and those that can be loaded."""
    services = request.app[SERVICES]
    status = await live_status(services.supervisor)
    now_s = time.time()
    loaded = [
        _loaded(model, services.metrics, now_s) for model in status.workers if model.state.loaded
    ]
    others = [
        UnloadedModel(**_common(model), progress=model.fraction)
        for model in status.workers
        if not model.state.loaded
    ]
    return json_value(ModelsAnswer(loaded=loaded, count=len(loaded), available=others))


async def admin_memory(request: web.Request) -> web.Response:
    """Return the machine's memory, and how much of it each model has."""
    status = await live_status(request.app[SERVICES].supervisor)
    memory = machine_memory(status.supervisor)
    return json_value(
        MemoryAnswer(
            total_unified_memory_gb=memory["total_gb"],
            used_gb=memory["used_gb"],
            available_gb=memory["available_gb"],
            threshold_percent=memory["threshold_percent"],
            budget_gb=memory["budget_gb"],
            reserved_gb=memory["reserved_gb"],
            models={model.model: _model_memory(model) for model in status.workers},
        )
    )


async def admin_health(request: web.Request) -> web.Response:
    """Return 200 while requests can be served, else 503 with a reason. Anybody may ask.

    Low memory is a reason too, with 200: the loaded models still serve.
    """
    services = request.app[SERVICES]
    supervisor = services.supervisor
    reason = unhealthy_reason(supervisor.latest, silent=supervisor.silent)
    status = 200 if reason is None else 503
    if reason is None:
        reason = await _shortage(services.supervisor) or no_loads(supervisor.latest)
    version = services.spec.version
    if reason is None:
        answer = HealthAnswer(status="ok", version=version)
    else:
        answer = HealthAnswer(status="degraded", version=version, reason=reason)
    response = json_value(answer, status)
    if status == 503:
        response.headers["Retry-After"] = "5"
    return response


async def _shortage(supervisor: SupervisorLink) -> str | None:
    try:
        status = await live_status(supervisor)
    except LmxError as error:
        return error.message
    found = status.supervisor
    if found.memory_pressure is MemoryPressure.NONE:
        return None
    used = _percent(found.machine_used_bytes, found.machine_memory_bytes)
    line = round(100 * found.memory_soft_line)
    return (
        f"Memory usage at {used:g}%, the line is {line}% ({found.memory_pressure} pressure): "
        "nothing is loaded, and idle models go"
    )


def machine_memory(supervisor: SupervisorStatus) -> MachineMemory:
    """Return the machine's memory from the supervisor's status."""
    total, used = supervisor.machine_memory_bytes, supervisor.machine_used_bytes
    return MachineMemory(
        total_gb=to_gb(total),
        used_gb=to_gb(used),
        available_gb=to_gb(total - used),
        usage_percent=_percent(used, total),
        threshold_percent=round(100 * supervisor.memory_soft_line),
        pressure=supervisor.memory_pressure.value,
        budget_gb=to_gb(supervisor.budget_bytes),
        reserved_gb=to_gb(supervisor.reserved_bytes),
    )


def _percent(used_bytes: int, total_bytes: int) -> float:
    return round(100 * used_bytes / total_bytes, 1) if total_bytes > 0 else 0.0


def _common(model: ModelStatus) -> ModelLine:
    return {
        "id": model.model,
        "loaded": model.state.loaded,
        "state": model.state.value,
        "source": model.source,
        "aliases": list(model.aliases),
        "kind": None if model.kind is None else model.kind.value,
        "context_length": model.context_length,
        "pinned": model.pinned,
        "problem": model.problem,
    }


def _loaded(model: ModelStatus, metrics: RequestMetrics, now_s: float) -> LoadedModel:
    return LoadedModel(
        **_common(model),
        memory_gb=to_gb(model.figures.memory_bytes),
        loaded_at=model.loaded_at_s,
        use_batching=model.max_rows > 1,
        request_count=metrics.requests_of(model),
        last_used_at=_last_used_at_s(model, metrics, now_s),
        requests_active=model.requests_active,
        requests_queued=model.requests_queued,
        expires_in_s=model.expires_in_s,
    )


def _last_used_at_s(model: ModelStatus, metrics: RequestMetrics, now_s: float) -> float | None:
    if model.requests_active or model.requests_queued:
        return round(now_s, 3)
    _, ended_s = metrics.used(model.model)
    idle_s = model.idle_s if model.figures.requests_total else None
    known = [at_s for at_s in (ended_s, None if idle_s is None else now_s - idle_s) if at_s]
    return round(max(known), 3) if known else None


def _model_memory(model: ModelStatus) -> ModelMemory:
    return ModelMemory(
        memory_gb=to_gb(model.figures.memory_bytes),
        loaded=model.state.loaded,
        peak_gb=to_gb(model.figures.peak_memory_bytes),
        reserved_gb=to_gb(model.reserved_bytes),
    )
