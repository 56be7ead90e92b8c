"""How the routes for operators ask the supervisor: under their own field names, within
deadlines."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from lmx.protocol.errors import ErrorCode, LmxError, ProtocolError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.status import GetStatus, ReturnedMemory, Status, SystemStatus
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.link import SupervisorLink

COMMAND_DEADLINE_S: Final = 30.0
"""The time limit for a command that only begins something, and for a look-up, on a machine that is
busy with something else."""

_SNAPSHOT_S: Final = 2.0
_STATUS_DEADLINE_S: Final = 5.0

_MEMORY_S: Final = 8.0
"""The time limit for a killed worker to end and for its memory to come back."""

_MEMORY_POLL_S: Final = 0.1

_Reply = TypeVar("_Reply")


async def seen_in_snapshot(
    supervisor: SupervisorLink, condition: Callable[[Directory], bool]
) -> None:
    """Wait for a moment until a snapshot shows what a command has done: snapshots arrive on another
    socket than replies, and the client's next request is answered by the last one."""
    await supervisor.until(condition, _SNAPSHOT_S)


async def ask(
    supervisor: SupervisorLink, question: Any, kind: type[_Reply], deadline_s: float
) -> _Reply:
    """Return the reply to a question; it must be of type ``kind``. Raises as
    :meth:`SupervisorLink.ask` does."""
    reply = await supervisor.ask(question, deadline_s)
    if not isinstance(reply, kind):
        raise ProtocolError(f"{type(reply).__name__} is no reply to {type(question).__name__}")
    return reply


async def command(supervisor: SupervisorLink, question: Any) -> Done:
    """Send a command and return once it has begun."""
    return await ask(supervisor, question, Done, COMMAND_DEADLINE_S)


async def live_status(supervisor: SupervisorLink) -> SystemStatus:
    """Return the status that the supervisor reports now."""
    return (await ask(supervisor, GetStatus(), Status, _STATUS_DEADLINE_S)).status


async def returned_memory(
    supervisor: SupervisorLink, model_id: str, pid: int | None
) -> ReturnedMemory | None:
    """Return what came back of an ended worker's memory, once that was measured; None if it was not
    measured in time."""
    deadline_s = time.monotonic() + _MEMORY_S
    while pid is not None and time.monotonic() < deadline_s:
        try:
            model = (await live_status(supervisor)).model(model_id)
        except LmxError:
            pass  # It may answer the next question.
        else:
            if model is None:
                return None  # it was removed
            last = model.last_exit
            if last is not None and last.pid == pid and last.memory is not None:
                return last.memory
        await asyncio.sleep(_MEMORY_POLL_S)
    return None


def known_model(directory: Directory, name: str) -> ModelView | None:
    """Return the model with a worker of its own that a name means, an adapter's name too; None if
    there is none."""
    return directory.base(directory.resolve(name)) if directory.knows(name) else None


@contextmanager
def params_named(names: Mapping[str, str]) -> Iterator[None]:
    """Let the errors of the block name this route's fields.

    ``names`` maps the fields of the supervisor's questions to those of the route: ``model`` stands
    for the field that names the model, ``source`` for the one that names what a model is made of,
    also if the fault shows only when the source is fetched.
    """
    try:
        yield
    except LmxError as error:
        of_source = error.code is ErrorCode.MODEL_SOURCE_INVALID
        param = error.param or ("source" if of_source else None)
        if param is None or param not in names:
            raise
        # A new error object, because requests that wait for the same model got this one too.
        raise type(error)(
            error.code,
            error.message,
            param=names[param],
            retry_after_s=error.retry_after_s,
            final=error.final,
        ) from error
