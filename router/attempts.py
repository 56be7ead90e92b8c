"""Finding a worker for a request: acquire its model, try, and try again while that makes sense."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from lmx.protocol.control import ModelView
from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.router.directory import ready_instance
from lmx.router.waiting_room import WaitingRoom

SAID_NOTHING: Final = frozenset({ErrorCode.WORKER_LOST})
ENDED: Final = SAID_NOTHING | {
    ErrorCode.WORKER_CRASHED,
    ErrorCode.WORKER_HUNG,
    ErrorCode.WORKER_KILLED,
    ErrorCode.WORKER_OUT_OF_MEMORY,
    ErrorCode.ENGINE_ERROR,
}
"""For a request that the worker had not taken, its end is most likely another one's doing. It may
be this one's all the same, which must not go through worker after worker."""

_MAY_BE_ITS_DOING: Final = frozenset(
    {
        ErrorCode.WORKER_LOST,
        ErrorCode.WORKER_CRASHED,
        ErrorCode.WORKER_HUNG,
        ErrorCode.WORKER_OUT_OF_MEMORY,
    }
)
"""Of a request that its worker was preparing, a hang or a crash most likely is."""

_PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Before each further attempt. The first goes at once: a worker that gives way to another model
refuses, and the supervisor knows when there is one again."""

_log = structlog.get_logger()
_T = TypeVar("_T")


async def on_worker(
    room: WaitingRoom,
    model: ModelView,
    request_id: str,
    owner: str,
    attempt: Callable[[str], Awaitable[_T]],
    retried_event: str,
    once_more_after: frozenset[ErrorCode],
) -> tuple[_T, float]:
    """Return what ``attempt`` gives for a worker's instance, and how long its model was waited
    for in seconds.

    An attempt that meets a worker on its way out is made again through the waiting room, where
    the request keeps its place; ``retried_event`` is logged. After an error in
    ``once_more_after`` that is not final it is made once more. So an attempt may only fail in
    these ways as long as nothing of it has been given out. Raises what the last one raised, or
    the waiting room.
    """
    arrived_s = time.monotonic()
    instance = ready_instance(model)
    waited_s = 0.0
    once_more = True
    for pause_s in (*_PAUSES_S, None):
        if instance is None:
            began_s = time.monotonic()
            instance = await room.acquire(model.model_id, request_id, owner, arrived_s)
            waited_s += time.monotonic() - began_s
        try:
            return await attempt(instance), waited_s
        except LmxError as error:
            late = time.monotonic() - arrived_s >= room.load_wait_s
            if error.code in once_more_after and once_more and not error.final:
                once_more = False
            elif error.code is not ErrorCode.MODEL_UNLOADED:
                raise
            if pause_s is None or late:
                raise
            _log.info(retried_event, model=model.model_id, reason=error.message)
        instance = None
        await asyncio.sleep(pause_s)
        waited_s += pause_s
    raise AssertionError("the last attempt returns or raises")


def blamed(error: LmxError, *, preparing: bool) -> LmxError:
    """Return the error for a request that had no verdict when its worker ended; final where the
    worker was ``preparing`` it, so that it doesn't hang the next one too."""
    if not preparing or error.code not in _MAY_BE_ITS_DOING:
        return error
    return GenerationError(error.code, error.message, param=error.param, final=True)
