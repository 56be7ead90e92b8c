"""GET /admin/workers and POST /admin/workers/{id}/kill: the processes of the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.control import KillModel
from lmx.router.http.responses import json_answer
from lmx.router.schema.answers.operation import (
    KillAnswer,
    LastExit,
    MemoryReturned,
    WorkerLine,
    WorkersAnswer,
)
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.queries import (
    command,
    known_model,
    live_status,
    memory_back,
    params_named,
)


async def list_workers(request: web.Request) -> web.Response:
    """Return every model with its process, as the supervisor last heard of it."""
    status = await live_status(request.app[SERVICES].supervisor)
    return json_answer(WorkersAnswer(workers=[_line(line) for line in status["workers"]]))


async def kill_worker(request: web.Request) -> web.Response:
    """End a model's worker this instant; its requests get an error, and the supervisor starts it
    again where it is wanted. Raises MODEL_NOT_FOUND, MODEL_NOT_LOADED."""
    supervisor = request.app[SERVICES].supervisor
    model_id = model_of(await supervisor.directory(), request.match_info["id"])
    with params_named({"model": "id"}):
        done = await command(supervisor, KillModel(model_id))
    memory = await memory_back(supervisor, model_id, done.pid)
    message = done.message if memory is None else f"{done.message}; {memory['detail']}"
    returned = None if memory is None else MemoryReturned(**memory)
    return json_answer(
        KillAnswer(success=True, model=model_id, pid=done.pid, message=message, memory=returned)
    )


def model_of(directory: Directory, name: str) -> str:
    """Return the model that is meant by its id, alias or source, or by its worker's instance or
    pid. Raises :class:`RequestError` (MODEL_NOT_FOUND)."""
    if (named := known_model(directory, name)) is not None:
        return named.model_id
    for model in directory.models:
        if name == model.instance or (model.pid is not None and name == str(model.pid)):
            return model.model_id
    raise RequestError(
        ErrorCode.MODEL_NOT_FOUND,
        f"No model and no worker is named {name[:200]!r}: name a model's id or alias, or a "
        "worker's instance or pid, as GET /admin/workers lists them.",
        param="id",
    )


def _line(line: Mapping[str, Any]) -> WorkerLine:
    last = line["last_exit"]
    return WorkerLine(
        model=line["model"],
        state=line["state"],
        kind=line["kind"],
        pid=line["pid"],
        instance=line["instance"],
        memory_bytes=line["memory_bytes"],
        peak_memory_bytes=line["peak_memory_bytes"],
        reserved_bytes=line["reserved_bytes"],
        kv_bytes=line["kv_bytes"],
        context_length=line["context_length"],
        pinned=line["pinned"],
        requests_running=line["requests_active"],
        requests_queued=line["requests_queued"],
        requests_total=line["requests_total"],
        tokens_total=line["tokens_total"],
        stalled_s=line["stalled_s"],
        idle_s=line["idle_s"],
        expires_in_s=line["expires_in_s"],
        loaded_at_s=line["loaded_at_s"],
        loads_total=line["loads_total"],
        restarts=line["restarts"],
        exits=line["exits"],
        last_exit=None if last is None else LastExit(**last),
        problem=line["problem"],
    )
