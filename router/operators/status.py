"""GET /admin/status, /admin/models, /admin/memory and /admin/health: how lmx is.

All but the health show live figures of the supervisor, and are a 503 while there is none. None
of them wakes a model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from lmx.protocol.errors import LmxError
from lmx.protocol.states import MemoryPressure
from lmx.router.http.responses import json_answer, to_gb
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.operators.health import no_loads, unhealthy_reason
from lmx.router.schema.answers.admin import (
    HealthAnswer,
    LoadedModel,
    MachineMemory,
    MemoryAnswer,
    ModelMemory,
    ModelsAnswer,
    StatusAnswer,
    UnloadedModel,
)
from lmx.router.services import SERVICES
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import is_loaded_line, live_status


async def admin_status(request: web.Request) -> web.Response:
    """Return the whole of it in brief."""
    services = request.app[SERVICES]
    status = await live_status(services.supervisor)
    lines = status["workers"]
    loaded = [line["model"] for line in lines if is_loaded_line(line)]
    return json_answer(
        StatusAnswer(
            version=services.spec.version,
            uptime_seconds=round(time.time() - services.counts.since_s, 3),
            loaded_models=len(loaded),
            models=loaded,
            memory=machine_memory(status["supervisor"]),
            state=status["supervisor"]["state"],
            requests_active=sum(line["requests_active"] for line in lines),
            requests_waiting=sum(line["requests_queued"] for line in lines)
            + services.room.all_waiting,
        )
    )


async def admin_models(request: web.Request) -> web.Response:
    """Return every model: those in memory, and those that can be loaded."""
    services = request.app[SERVICES]
    status = await live_status(services.supervisor)
    now_s = time.time()
    loaded = [
        _loaded(line, services.metrics, now_s) for line in status["workers"] if is_loaded_line(line)
    ]
    others = [_unloaded(line) for line in status["workers"] if not is_loaded_line(line)]
    return json_answer(ModelsAnswer(loaded=loaded, count=len(loaded), available=others))


async def admin_memory(request: web.Request) -> web.Response:
    """Return the machine's memory, and what each model has of it."""
    status = await live_status(request.app[SERVICES].supervisor)
    memory = machine_memory(status["supervisor"])
    return json_answer(
        MemoryAnswer(
            total_unified_memory_gb=memory.total_gb,
            used_gb=memory.used_gb,
            available_gb=memory.available_gb,
            threshold_percent=memory.threshold_percent,
            budget_gb=memory.budget_gb,
            reserved_gb=memory.reserved_gb,
            models={line["model"]: _model_memory(line) for line in status["workers"]},
        )
    )


async def admin_health(request: web.Request) -> web.Response:
    """Return 200 while requests can be served, else 503 with a reason, for whoever asks.

    Memory that runs short is a reason too, with 200: what is loaded still serves.
    """
    services = request.app[SERVICES]
    supervisor = services.supervisor
    reason = unhealthy_reason(supervisor.latest, supervisor_alive=supervisor.alive)
    status = 200 if reason is None else 503
    if reason is None:
        reason = await _shortage(services.supervisor) or no_loads(supervisor.latest)
    version = services.spec.version
    if reason is None:
        answer = HealthAnswer(status="ok", version=version)
    else:
        answer = HealthAnswer(status="degraded", version=version, reason=reason)
    response = json_answer(answer, status)
    if status == 503:
        response.headers["Retry-After"] = "5"
    return response


async def _shortage(supervisor: SupervisorLink) -> str | None:
    try:
        status = await live_status(supervisor)
    except LmxError as error:
        return error.message
    memory = status["supervisor"]
    if memory["memory_pressure"] == MemoryPressure.NONE.value:
        return None
    used = _percent(memory["machine_used_bytes"], memory["machine_memory_bytes"])
    line = round(100 * memory["memory_soft_line"])
    return (
        f"Memory usage at {used:g}%, the line is {line}% ({memory['memory_pressure']} pressure): "
        "nothing is loaded, and idle models go"
    )


def machine_memory(supervisor: Mapping[str, Any]) -> MachineMemory:
    """Return the machine's memory as a status has it."""
    total, used = supervisor["machine_memory_bytes"], supervisor["machine_used_bytes"]
    return MachineMemory(
        total_gb=to_gb(total),
        used_gb=to_gb(used),
        available_gb=to_gb(total - used),
        usage_percent=_percent(used, total),
        threshold_percent=round(100 * supervisor["memory_soft_line"]),
        pressure=supervisor["memory_pressure"],
        budget_gb=to_gb(supervisor["budget_bytes"]),
        reserved_gb=to_gb(supervisor["reserved_bytes"]),
    )


def _percent(used_bytes: int, total_bytes: int) -> float:
    return round(100 * used_bytes / total_bytes, 1) if total_bytes > 0 else 0.0


def _common(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": line["model"],
        "loaded": is_loaded_line(line),
        **{
            name: line[name]
            for name in (
                "state", "source", "aliases", "kind", "context_length", "pinned", "problem",
            )
        },
    }  # fmt: skip


def _loaded(line: Mapping[str, Any], metrics: RequestMetrics, now_s: float) -> LoadedModel:
    return LoadedModel(
        **_common(line),
        memory_gb=to_gb(line["memory_bytes"]),
        loaded_at=line["loaded_at_s"],
        use_batching=line["max_rows"] > 1,
        request_count=metrics.requests_of(line),
        last_used_at=_last_used_at_s(line, metrics, now_s),
        requests_active=line["requests_active"],
        requests_queued=line["requests_queued"],
        expires_in_s=line["expires_in_s"],
    )


def _last_used_at_s(line: Mapping[str, Any], metrics: RequestMetrics, now_s: float) -> float | None:
    if line["requests_active"] or line["requests_queued"]:
        return round(now_s, 3)
    _, ended_s = metrics.used(line["model"])
    idle_s = line["idle_s"] if line["requests_total"] else None
    known = [at_s for at_s in (ended_s, None if idle_s is None else now_s - idle_s) if at_s]
    return round(max(known), 3) if known else None


def _unloaded(line: Mapping[str, Any]) -> UnloadedModel:
    return UnloadedModel(**_common(line), progress=line["fraction"])


def _model_memory(line: Mapping[str, Any]) -> ModelMemory:
    return ModelMemory(
        memory_gb=to_gb(line["memory_bytes"]),
        loaded=is_loaded_line(line),
        peak_gb=to_gb(line["peak_memory_bytes"]),
        reserved_gb=to_gb(line["reserved_bytes"]),
    )
