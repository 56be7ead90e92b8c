"""Tries the models that may answer a request or a task, one after the other, until one is
available."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Task
from lmx.router.http.local_paths import without_paths
from lmx.router.workers.dispatch import TaskDispatcher
from lmx.router.workers.task import OrderedPart, TaskAnswer
from lmx.router.workers.waits import Waits

NOT_LOADED: Final = frozenset(
    {
        # The model was removed since the request came.
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.MODEL_LOAD_FAILED,
        ErrorCode.MODEL_QUARANTINED,
        ErrorCode.MODEL_UNLOADED,
        ErrorCode.MODEL_DRAINED,
        ErrorCode.INSUFFICIENT_MEMORY,
        ErrorCode.INSUFFICIENT_DISK,
        ErrorCode.MODEL_SOURCE_INVALID,
        ErrorCode.DOWNLOAD_FAILED,
        ErrorCode.CONVERSION_FAILED,
    }
)
"""The errors of a model that is not available. Two errors are left out on purpose: that the load
takes too long, because the client would wait twice; and that a worker was lost, because this very
request may have caused it."""

_log = structlog.get_logger()
_T = TypeVar("_T")


async def first_loaded(
    models: Sequence[ModelView], attempt: Callable[[ModelView], Awaitable[_T]]
) -> _T:
    """Return what ``attempt`` gives for the first model that is available. Each is tried once.

    An attempt may fail with a code of ``NOT_LOADED`` only before any of its output was passed on.
    Raises any other error at once, and the first model's error if none is available, both without
    the model's folder.
    """
    first: LmxError | None = None
    for model in models:
        try:
            return await attempt(model)
        except LmxError as error:
            if error.code not in NOT_LOADED or error.final:
                raise _without_folder(error, model) from error
            first = first or _without_folder(error, model)
            _log.info("route.skipped", model=model.model_id, reason=error.message)
    assert first is not None, "there is a model"
    raise first


def _without_folder(error: LmxError, model: ModelView) -> LmxError:
    """Return an error that does not name where on this machine the model lies."""
    if model.source not in error.message:
        return error
    return type(error)(
        error.code,
        without_paths(error.message, (model.source,)),
        param=error.param,
        retry_after_s=error.retry_after_s,
        final=error.final,
    )


@asynccontextmanager
async def first_opened(
    models: Sequence[ModelView],
    open_: Callable[[ModelView], AbstractAsyncContextManager[_T]],
    on_choice: Callable[[ModelView], None],
) -> AsyncIterator[_T]:
    """Enter what ``open_`` gives for the first available model, as :func:`first_loaded` does.
    ``on_choice`` is called with each model before it is tried, so its last call names the one that
    answers."""
    async with AsyncExitStack() as opened:

        async def attempt(model: ModelView) -> _T:
            on_choice(model)
            return await opened.enter_async_context(open_(model))

        yield await first_loaded(models, attempt)


async def perform_on_first(
    tasks: TaskDispatcher,
    models: Sequence[ModelView],
    task: Task,
    on_choice: Callable[[ModelView], None],
    waits: Waits,
    blobs: Sequence[bytes] = (),
    on_part: Callable[[OrderedPart], None] | None = None,
) -> tuple[ModelView, TaskAnswer]:
    """Return the model that did ``task``, and its answer. ``on_choice`` is called with each model
    before it is tried, so its last call names the one that answers. For ``waits``, ``blobs`` and
    ``on_part`` see :meth:`TaskDispatcher.perform`."""

    async def attempt(model: ModelView) -> tuple[ModelView, TaskAnswer]:
        on_choice(model)
        return model, await tasks.perform(model, task, waits, blobs, on_part)

    return await first_loaded(models, attempt)
