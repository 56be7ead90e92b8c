"""Finding a worker for a request: acquire its model, try, and perhaps once more."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from lmx.protocol.control import ModelView
from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router.directory import ready_instance
from lmx.router.supervisor_link import SupervisorLink

_WORTH_ANOTHER_WORKER: Final = frozenset({ErrorCode.MODEL_UNLOADED, ErrorCode.WORKER_LOST})

_log = structlog.get_logger()
_T = TypeVar("_T")


async def on_worker(
    supervisor: SupervisorLink,
    model: ModelView,
    request_id: str,
    attempt: Callable[[str], Awaitable[_T]],
    retried_event: str,
) -> tuple[_T, float]:
    """Return what ``attempt`` gives for a worker's instance, and how long its model was waited
    for in seconds.

    An attempt that meets a worker on its way out, or that is not there any more, is made once
    more, through the supervisor; ``retried_event`` is logged. So an attempt may only fail in
    this way as long as nothing of it has been given out. Raises what the last one raised.
    """

    async def acquire() -> tuple[str, float]:
        began_at = time.monotonic()
        acquired = await supervisor.acquire(model.model_id, request_id)
        return acquired, time.monotonic() - began_at

    load_s = 0.0
    instance = ready_instance(model)
    if instance is None:
        instance, load_s = await acquire()
    try:
        return await attempt(instance), load_s
    except LmxError as error:
        if error.code not in _WORTH_ANOTHER_WORKER:
            raise
        _log.info(retried_event, model=model.model_id, reason=error.message)
    instance, again_s = await acquire()
    return await attempt(instance), load_s + again_s
