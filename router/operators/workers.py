"""GET /admin/workers and POST /admin/workers/{id}/kill: the processes of the models."""

from typing import Final, cast

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.control import KillModel
from lmx.protocol.messages.status import LastExit, ModelStatus, ReturnedMemory
from lmx.protocol.wire.codec import to_map
from lmx.router.http.responses import Answer, json_value
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.queries import (
    command,
    known_model,
    live_status,
    params_named,
    returned_memory,
)


class WorkerLine(Answer):
    """A model and its worker."""

    model: str
    state: str
    kind: str | None
    pid: int | None
    """The worker's process. Null if the model has no worker."""
    instance: str | None
    """The worker's own id. Null if the model has no worker."""
    memory_bytes: int
    peak_memory_bytes: int
    decoder_bytes: int
    """What the process takes that decodes images, sounds and videos for the worker. 0 while none is
    running."""
    reserved_bytes: int
    kv_bytes: int
    context_length: int | None
    pinned: bool
    requests_running: int
    requests_queued: int
    requests_total: int
    """The requests of this worker."""
    tokens_total: int
    """The tokens that this worker has made."""
    stalled_s: float
    """For how long this worker's work in flight has made no progress."""
    idle_s: float | None
    expires_in_s: float | None
    loaded_at_s: float | None
    loads_total: int
    """The loads of all workers that the model has had."""
    restarts: int
    """The restarts of all workers that the model has had."""
    exits: dict[str, int]
    """The exits of all workers that the model has had, by cause."""
    last_exit: LastExit | None
    """How the last worker ended. Null if none has ended."""
    problem: str | None


class WorkersAnswer(Answer):
    """The answer of GET /admin/workers: every model, in the configuration's order."""

    workers: list[WorkerLine]


class KillAnswer(Answer):
    """The answer of POST /admin/workers/{id}/kill: the signal was sent."""

    success: bool
    model: str
    pid: int | None
    message: str
    """What follows, in a sentence for people."""
    memory: ReturnedMemory | None
    """What came back of the worker's memory. Null if it was not measured within some seconds."""


async def list_workers(request: web.Request) -> web.Response:
    """Return every model with its process, as the supervisor last knew it."""
    found = await live_status(request.app[SERVICES].supervisor)
    return json_value(WorkersAnswer(workers=[_line(model) for model in found.workers]))


async def kill_worker(request: web.Request) -> web.Response:
    """End a model's worker at once. Its requests get an error, and the supervisor starts it again
    if it is wanted. Raises MODEL_NOT_FOUND, MODEL_NOT_LOADED."""
    supervisor = request.app[SERVICES].supervisor
    model_id = model_of(await supervisor.directory(), request.match_info["id"])
    with params_named({"model": "id"}):
        done = await command(supervisor, KillModel(model_id))
    memory = await returned_memory(supervisor, model_id, done.pid)
    message = done.message if memory is None else f"{done.message}; {memory.detail}"
    return json_value(
        KillAnswer(success=True, model=model_id, pid=done.pid, message=message, memory=memory)
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


_RENAMED: Final = {"requests_running": "requests_active"}


def _line(model: ModelStatus) -> WorkerLine:
    known = to_map(model)
    names = {name: _RENAMED.get(name, name) for name in WorkerLine.__annotations__}
    return cast("WorkerLine", {name: known[one] for name, one in names.items()})
