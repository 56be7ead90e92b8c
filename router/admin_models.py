"""POST /admin/models/load and /unload, DELETE /admin/models/{id}."""

from __future__ import annotations

import time
from typing import Final

from aiohttp import web

from lmx.protocol.inventory import Deleted, DeleteModel
from lmx.router.admin_status import machine_memory
from lmx.router.answer_admin import DeleteAnswer, LoadAnswer, UnloadAnswer
from lmx.router.answer_operation import MemoryReturned
from lmx.router.body import read_object
from lmx.router.invalid import validated
from lmx.router.json_answer import json_answer, to_gb
from lmx.router.model_loading import loaded, unloaded
from lmx.router.operating import ask, line_of, live_status, memory_back, params_named
from lmx.router.schemas_admin import DeleteQuery, LoadRequest, UnloadRequest
from lmx.router.services import SERVICES
from lmx.router.traffic import RECORD

_DELETE_DEADLINE_S: Final = 300.0
"""For a model that is unloaded first, after its requests, and hundreds of gigabytes of files."""

_LOAD_FIELDS: Final = {
    "model": "model_id",
    "source": "model_id",
    "context_length": "max_context_length",
}
_MODEL_FIELD: Final = {"model": "model_id"}


async def load_model(request: web.Request) -> web.Response:
    """Load a model, and answer once it is ready. Who leaves does not stop the load."""
    services, record = request.app[SERVICES], request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(LoadRequest, body)
    with params_named(_LOAD_FIELDS):
        model = await loaded(services, record, wanted.model_id, wanted.max_context_length)
    took_s = time.monotonic() - record.started_at
    status = await live_status(services.supervisor)
    return json_answer(
        LoadAnswer(
            success=True,
            model_id=model.model_id,
            memory_after_load_gb=machine_memory(status["supervisor"]).used_gb,
            time_to_load_ms=round(1000 * took_s, 1),
            context_length=model.context_length,
            gpu_layers=wanted.gpu_layers,
        )
    )


async def unload_model(request: web.Request) -> web.Response:
    """Unload a model, and answer once its memory is free. Its next request loads it again."""
    services, record = request.app[SERVICES], request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(UnloadRequest, body)
    with params_named(_MODEL_FIELD):
        model = (await services.supervisor.directory()).resolve(wanted.model_id)
        record.model = model.model_id
        before = line_of(await live_status(services.supervisor), model.model_id)
        await unloaded(services, model)
    pid, held_bytes = (None, 0) if before is None else (before["pid"], before["memory_bytes"])
    memory = await memory_back(services.supervisor, model.model_id, pid)
    return json_answer(
        UnloadAnswer(
            success=True,
            model_id=model.model_id,
            memory_freed_gb=to_gb(held_bytes if memory is None else memory["returned_bytes"]),
            memory=None if memory is None else MemoryReturned(**memory),
        )
    )


async def delete_model(request: web.Request) -> web.Response:
    """Delete a model's files. One that is loaded is a 409 unless ``force`` is true."""
    services = request.app[SERVICES]
    query = validated(DeleteQuery, dict(request.query))
    name = request.match_info["id"]
    question = DeleteModel(name, force=query.force)
    with params_named(_MODEL_FIELD):
        deleted = await ask(services.supervisor, question, Deleted, _DELETE_DEADLINE_S)
    return json_answer(
        DeleteAnswer(success=True, model_id=deleted.model_id, freed_bytes=deleted.freed_bytes)
    )
