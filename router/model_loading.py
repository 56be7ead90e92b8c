"""Has a model loaded or unloaded for an operator, and waits until it is so."""

from __future__ import annotations

import asyncio
from typing import Final

from lmx.protocol.control import LoadModel, ModelView, UnloadModel
from lmx.protocol.errors import ErrorCode, GenerationError, RequestError
from lmx.protocol.states import SlotState
from lmx.router.directory import Directory
from lmx.router.operating import COMMAND_DEADLINE_S, command, known_model, line_of, live_status
from lmx.router.questions import unavailable
from lmx.router.services import Services
from lmx.router.traffic import Record

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
"""What a load can fail with beside what every route can."""

_POLL_S: Final = 0.25

_DOWN: Final = frozenset({SlotState.COLD, SlotState.QUARANTINED, SlotState.HELD})


async def loaded(
    services: Services, record: Record, name: str, context_length: int | None = None
) -> ModelView:
    """Return a model once it is READY; ``context_length`` None: with the one it has, or is
    configured with.

    Waits as long as a request for it would (``load_wait_s``). Whoever stops waiting doesn't stop
    the load. Raises what the supervisor denies it with, ``param`` in its words, and what
    :meth:`WaitingRoom.acquire` raises.
    """
    supervisor = services.supervisor
    model = known_model(await supervisor.directory(), name)
    # A name that is not known may be a repository on this machine, which is added by this.
    asked = name if model is None else model.model_id
    await command(supervisor, LoadModel(asked, context_length))
    if not await supervisor.until(
        lambda now: known_model(now, asked) is not None, COMMAND_DEADLINE_S
    ):
        raise unavailable(f"lmx's supervisor did not tell of {asked!r} in time.")
    record.model = _model(services, asked).model_id
    instance = await services.room.acquire(
        record.model, record.request_id, record.asker, record.started_at
    )
    # Its context and memory come with the snapshot that names the worker.
    await supervisor.until(
        lambda now: instance in now.instances() or known_model(now, asked) is None,
        COMMAND_DEADLINE_S,
    )
    return _model(services, asked)


async def unloaded(services: Services, model: ModelView) -> None:
    """Unload a model and return once its worker is gone; its next request loads it again.

    Raises :class:`RequestError` (MODEL_NOT_LOADED) where nothing is loaded or on its way, and
    DEADLINE_EXCEEDED when its requests take longer to end than ``load_wait_s``.
    """
    if model.slot in _DOWN:
        raise RequestError(
            ErrorCode.MODEL_NOT_LOADED,
            f"{model.model_id} is not loaded: it is {model.slot.value}.",
            param="model",
        )
    await command(services.supervisor, UnloadModel(model.model_id))
    await gone(services, model)


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
    """A removed model is in no snapshot any more, while its requests come to their end."""
    while True:
        line = line_of(await live_status(services.supervisor), model.model_id)
        if line is None or line["instance"] != model.instance:
            return
        await asyncio.sleep(_POLL_S)


def _has_left(directory: Directory, model: ModelView) -> bool:
    now = directory.model(model.model_id)
    if now is None:
        return True
    if model.instance is None:
        return now.slot in _DOWN
    return now.instance != model.instance


def _model(services: Services, name: str) -> ModelView:
    directory = services.supervisor.latest
    assert directory is not None
    return directory.resolve(name)
