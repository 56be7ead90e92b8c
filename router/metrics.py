"""GET /metrics and /admin/metrics: what became of models and memory, for Prometheus."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from lmx.protocol.control import GetStatus, Status
from lmx.protocol.errors import LmxError, ProtocolError
from lmx.router.directory import shown_state
from lmx.router.metric_families import exposition
from lmx.router.services import SERVICES, Services

_STATUS_DEADLINE_S: Final = 2.0


async def metrics(request: web.Request) -> web.Response:
    """Serve without a key where only this machine can ask; elsewhere as ``/admin/metrics``."""
    return await _metrics(request.app[SERVICES])


async def admin_metrics(request: web.Request) -> web.Response:
    """Serve to operators. Never wakes a model."""
    return await _metrics(request.app[SERVICES])


async def _metrics(services: Services) -> web.Response:
    try:
        reply = await services.supervisor.ask(GetStatus(), _STATUS_DEADLINE_S)
    except LmxError:
        status = None
    else:
        if not isinstance(reply, Status):
            raise ProtocolError(f"{type(reply).__name__} is no reply to GetStatus")
        status = reply.status
    directory = services.supervisor.latest
    models = () if directory is None else directory.models
    waiting = {model.model_id: services.room.waiting(model.model_id) for model in models}
    if status is None:
        known: list[dict[str, Any]] = [
            {
                "model": model.model_id,
                "state": shown_state(model),
                "memory_bytes": model.memory_bytes,
            }
            for model in models
        ]
        status = {"workers": known}
    body = exposition(status, waiting, supervisor_up=services.supervisor.alive)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
