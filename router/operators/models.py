"""What operators do to a model: POST /admin/models/load, unload, restart, reset, drain and pin, and
DELETE /admin/models/{id}.

A load, an unload and a deletion are answered once they are done, the others when they have begun.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode, GenerationError, RequestError
from lmx.protocol.messages.control import (
    DrainModel,
    LoadModel,
    PinModel,
    ResetModel,
    RestartModel,
    UnloadModel,
)
from lmx.protocol.messages.inventory import Deleted, DeleteModel
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.status import ReturnedMemory
from lmx.protocol.states import DOWN
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.outcome import CONTEXT, Outcome, set_outcome
from lmx.router.http.responses import Answer, json_value, to_gb
from lmx.router.operators.status import machine_memory
from lmx.router.schema.requests.operators import (
    DeleteQuery,
    LoadRequest,
    ModelRequest,
    PinRequest,
    UnloadRequest,
)
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES, Services
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.link import unavailable
from lmx.router.supervisor.queries import (
    COMMAND_DEADLINE_S,
    ask,
    command,
    known_model,
    live_status,
    params_named,
    returned_memory,
)

LOAD_ERRORS: Final = (
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.MODEL_SOURCE_INVALID,
    ErrorCode.MODEL_LOADING,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.MODEL_UNLOADED,
    ErrorCode.QUEUE_FULL,
    ErrorCode.INSUFFICIENT_MEMORY,
    ErrorCode.INSUFFICIENT_DISK,
    ErrorCode.DOWNLOAD_FAILED,
    ErrorCode.CONVERSION_FAILED,
)
"""The errors with which a load can fail, besides those of every route."""

_POLL_S: Final = 0.25

_Wanted = TypeVar("_Wanted", bound=BaseModel)


class LoadAnswer(Answer):
    """The answer of POST /admin/models/load."""

    success: Literal[True]
    model_id: str
    memory_after_load_gb: float
    """How much of the machine's memory is in use after the load."""
    time_to_load_ms: float
    context_length: int | None
    gpu_layers: int | None
    """The value of the request. Memory is unified, so it has no effect."""


class UnloadAnswer(Answer):
    """The answer of POST /admin/models/unload."""

    success: Literal[True]
    model_id: str
    memory_freed_gb: float
    """How much memory was measured to come back. If that took too long (`memory` is null), or the
    worker ended before it could be measured, it is what the worker held."""
    memory: ReturnedMemory | None


class CommandAnswer(Answer):
    """What has begun, or is done."""

    success: Literal[True]
    model: str
    pid: int | None
    """The process of the model's worker. Null if it has none."""
    message: str
    """What follows, in a sentence for people."""


class DeleteAnswer(Answer):
    """The answer of DELETE /admin/models/{id}."""

    success: Literal[True]
    model_id: str
    freed_bytes: int
    forgotten: tuple[str, ...]
    """The models that are served no more."""


async def loaded(request: web.Request, name: str, context_length: int | None = None) -> ModelView:
    """Return the model that ``request`` has loaded, once it is READY. ``context_length`` None means
    the context that it has, or that is configured.

    Waits as long as a request for it would (``load_wait_s``). A client that stops waiting does not
    stop the load. Raises the error of the supervisor's refusal, with ``param`` in its own field
    names, and the errors of :meth:`ModelQueues.acquire`.
    """
    services, context = request.app[SERVICES], request[CONTEXT]
    supervisor = services.supervisor
    model = known_model(await supervisor.directory(), name)
    # A name that is not known may be a repository on this machine, or a short name of one. The load
    # adds it as a model, and says under which id.
    asked = name if model is None else model.model_id
    done = await command(supervisor, LoadModel(asked, context_length))
    asked = done.model_id or asked
    if not await supervisor.until(
        lambda now: known_model(now, asked) is not None, COMMAND_DEADLINE_S
    ):
        raise unavailable(f"lmx's supervisor did not report {asked!r} in time.")
    model_id = _model(services, asked).model_id
    set_outcome(request, Outcome(model=model_id))
    instance = await services.queues.acquire(
        model_id, context.request_id, context.requester, context.started_at_s
    )
    # Its context and memory come with the snapshot that names the worker.
    await supervisor.until(
        lambda now: instance in now.instances() or known_model(now, asked) is None,
        COMMAND_DEADLINE_S,
    )
    return _model(services, asked)


async def unloaded(services: Services, model: ModelView) -> None:
    """Unload a model and return once its worker is gone. The model's next request loads it again.

    Raises :class:`RequestError` (MODEL_NOT_LOADED) if it is neither loaded nor being loaded, and
    DEADLINE_EXCEEDED if its requests take longer to end than ``load_wait_s``.
    """
    if model.slot in DOWN:
        raise RequestError(
            ErrorCode.MODEL_NOT_LOADED,
            f"{model.model_id} is not loaded: it is {model.slot.value}.",
            param="model",
        )
    await command(services.supervisor, UnloadModel(model.model_id))
    await gone(services, model)


def _freed_bytes(memory: ReturnedMemory | None, held_bytes: int) -> int:
    """Return what came back of a worker's memory. If nothing was measured, because the worker ended
    at once or the measurement came too late, return what it held."""
    if memory is None or not (memory.returned_bytes or memory.missing_bytes):
        return held_bytes
    return memory.returned_bytes


async def gone(services: Services, model: ModelView) -> None:
    """Wait until the worker that a model had is gone. Raises DEADLINE_EXCEEDED when that takes
    longer than ``load_wait_s``."""
    wait_s = services.spec.load_wait_s
    try:
        async with asyncio.timeout(wait_s):
            await services.supervisor.until(lambda now: _has_left(now, model), None)
            if model.instance is not None:
                await _ended(services, model)
    except TimeoutError:
        raise GenerationError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"{model.model_id} still ends its requests after {wait_s:g} s, and is unloaded when "
            "it has.",
        ) from None


async def _ended(services: Services, model: ModelView) -> None:
    """Wait until a removed model's requests have ended. It is in no snapshot any more meanwhile."""
    while True:
        now = (await live_status(services.supervisor)).model(model.model_id)
        if now is None or now.instance != model.instance:
            return
        await asyncio.sleep(_POLL_S)


def _has_left(directory: Directory, model: ModelView) -> bool:
    now = directory.model(model.model_id)
    if now is None:
        return True
    if model.instance is None:
        return now.slot in DOWN
    return now.instance != model.instance


def _model(services: Services, name: str) -> ModelView:
    directory = services.supervisor.latest
    assert directory is not None
    return directory.base(directory.resolve(name))


_DELETE_DEADLINE_S: Final = 3900.0
"""The time for a model whose requests must end before it is unloaded, and whose files may be
hundreds of gigabytes on a slow disk."""

_LOAD_FIELDS: Final = {
    "model": "model_id",
    "source": "model_id",
    "context_length": "max_context_length",
}
_MODEL_FIELD: Final = {"model": "model_id"}


async def load_model(request: web.Request) -> web.Response:
    """Load a model, and answer once it is ready; with ``wait: false`` once the load has begun. A
    client that leaves does not stop the load."""
    services = request.app[SERVICES]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(LoadRequest, body)
    with params_named(_LOAD_FIELDS):
        if not wanted.wait:
            return await _begun(request, LoadModel(wanted.model_id, wanted.max_context_length))
        model = await loaded(request, wanted.model_id, wanted.max_context_length)
    took_s = time.monotonic() - request[CONTEXT].started_at_s
    status = await live_status(services.supervisor)
    return json_value(
        LoadAnswer(
            success=True,
            model_id=model.model_id,
            memory_after_load_gb=machine_memory(status.supervisor)["used_gb"],
            time_to_load_ms=round(1000 * took_s, 1),
            context_length=model.context_length,
            gpu_layers=wanted.gpu_layers,
        )
    )


async def unload_model(request: web.Request) -> web.Response:
    """Unload a model, and answer once its memory is free; with ``wait: false`` once the unload has
    begun. Its next request loads it again."""
    services = request.app[SERVICES]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(UnloadRequest, body)
    with params_named(_MODEL_FIELD):
        await services.supervisor.directory()
        model = _model(services, wanted.model_id)
        set_outcome(request, Outcome(model=model.model_id))
        if not wanted.wait:
            return await _begun(request, UnloadModel(model.model_id))
        before = (await live_status(services.supervisor)).model(model.model_id)
        await unloaded(services, model)
    pid = None if before is None else before.pid
    held_bytes = 0 if before is None else before.figures.memory_bytes
    memory = await returned_memory(services.supervisor, model.model_id, pid)
    return json_value(
        UnloadAnswer(
            success=True,
            model_id=model.model_id,
            memory_freed_gb=to_gb(_freed_bytes(memory, held_bytes)),
            memory=memory,
        )
    )


async def restart_model(request: web.Request) -> web.Response:
    """Begin to end a model's worker after its requests, and to load the model again. One that is
    not loaded is loaded; one in quarantine leaves it."""
    wanted = await _read(request, ModelRequest)
    return await _commanded(request, wanted.model, RestartModel)


async def reset_model(request: web.Request) -> web.Response:
    """Forget a model's failures, and that it was drained: its next request loads it."""
    wanted = await _read(request, ModelRequest)
    return await _commanded(request, wanted.model, ResetModel)


async def drain_model(request: web.Request) -> web.Response:
    """Begin to end a model's worker after its requests, and hold the model unloaded until POST
    /admin/models/load or /reset."""
    wanted = await _read(request, ModelRequest)
    return await _commanded(request, wanted.model, DrainModel)


async def pin_model(request: web.Request) -> web.Response:
    """Pin a model, so that it is never evicted, or unpin it. It lasts over restarts."""
    wanted = await _read(request, PinRequest)
    return await _commanded(
        request, wanted.model, lambda model_id: PinModel(model_id, wanted.pinned)
    )


async def _read(request: web.Request, kind: type[_Wanted]) -> _Wanted:
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    return validated(kind, body)


async def _begun(request: web.Request, question: LoadModel | UnloadModel) -> web.Response:
    """Send a command for the model that it names, and answer that it has begun."""
    supervisor = request.app[SERVICES].supervisor
    model = known_model(await supervisor.directory(), question.model_id)
    if model is not None:
        question = replace(question, model_id=model.model_id)
        set_outcome(request, Outcome(model=model.model_id))
    done = await command(supervisor, question)
    model_id = done.model_id or question.model_id
    return json_value(
        CommandAnswer(success=True, model=model_id, pid=done.pid, message=done.message)
    )


async def _commanded(
    request: web.Request, name: str, question: Callable[[str], Any]
) -> web.Response:
    services = request.app[SERVICES]
    await services.supervisor.directory()
    model_id = _model(services, name).model_id
    set_outcome(request, Outcome(model=model_id))
    with params_named({"source": "model"}):
        done = await command(services.supervisor, question(model_id))
    return json_value(
        CommandAnswer(success=True, model=model_id, pid=done.pid, message=done.message)
    )


async def delete_model(request: web.Request) -> web.Response:
    """Delete a model's files. A model that is loaded is a 409 unless ``force`` is true."""
    services = request.app[SERVICES]
    query = validated(DeleteQuery, dict(request.query))
    name = request.match_info["id"]
    question = DeleteModel(name, force=query.force)
    with params_named(_MODEL_FIELD):
        deleted = await ask(services.supervisor, question, Deleted, _DELETE_DEADLINE_S)
    return json_value(
        DeleteAnswer(
            success=True,
            model_id=deleted.model_id,
            freed_bytes=deleted.freed_bytes,
            forgotten=deleted.forgotten,
        )
    )
