"""GET /admin/workers and POST /admin/workers/{id}/kill: the processes of the models."""

from __future__ import annotations

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages import status
from lmx.protocol.messages.control import KillModel
from lmx.protocol.messages.status import ModelStatus, ReturnedMemory
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
    """Return every model with its process, as the supervisor last knew it."""
    found = await live_status(request.app[SERVICES].supervisor)
    return json_answer(WorkersAnswer(workers=[_line(model) for model in found.workers]))


async def kill_worker(request: web.Request) -> web.Response:
    """End a model's worker at once. Its requests get an error, and the supervisor starts it again
    if it is wanted. Raises MODEL_NOT_FOUND, MODEL_NOT_LOADED."""
    supervisor = request.app[SERVICES].supervisor
    model_id = model_of(await supervisor.directory(), request.match_info["id"])
    with params_named({"model": "id"}):
        done = await command(supervisor, KillModel(model_id))
    memory = await memory_back(supervisor, model_id, done.pid)
    message = done.message if memory is None else f"{done.message}; {memory.detail}"
    returned = None if memory is None else memory_returned(memory)
    return json_answer(
        KillAnswer(success=True, model=model_id, pid=done.pid, message=message, memory=returned)
    )


def model_of(directory: Directory, name: str) -> str:
    """Return the model that a name means: its id, alias or source, or its worker's instance or pid.
    Raises :class:`RequestError` (MODEL_NOT_FOUND)."""
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


def memory_returned(memory: ReturnedMemory) -> MemoryReturned:
    """Return what came back of a worker's memory, in the form of the answers."""
    return MemoryReturned(
        returned_bytes=memory.returned_bytes,
        missing_bytes=memory.missing_bytes,
        took_s=memory.took_s,
        detail=memory.detail,
    )


def _last_exit(last: status.LastExit) -> LastExit:
    return LastExit(
        cause=last.cause.value,
        detail=last.detail,
        at_s=last.at_s,
        pid=last.pid,
        memory=None if last.memory is None else memory_returned(last.memory),
    )


def _line(model: ModelStatus) -> WorkerLine:
    figures = model.figures
    return WorkerLine(
        model=model.model,
        state=model.state.value,
        kind=None if model.kind is None else model.kind.value,
        pid=model.pid,
        instance=model.instance,
        memory_bytes=figures.memory_bytes,
        peak_memory_bytes=figures.peak_memory_bytes,
        decoder_bytes=figures.decoder_bytes,
        reserved_bytes=model.reserved_bytes,
        kv_bytes=figures.kv_bytes,
        context_length=model.context_length,
        pinned=model.pinned,
        requests_running=model.requests_active,
        requests_queued=model.requests_queued,
        requests_total=figures.requests_total,
        tokens_total=figures.tokens_total,
        stalled_s=model.stalled_s,
        idle_s=model.idle_s,
        expires_in_s=model.expires_in_s,
        loaded_at_s=model.loaded_at_s,
        loads_total=model.loads_total,
        restarts=model.restarts,
        exits=model.exits,
        last_exit=None if model.last_exit is None else _last_exit(model.last_exit),
        problem=model.problem,
    )
