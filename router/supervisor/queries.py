"""How routes for operators ask the supervisor: by their own names for things, within deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from lmx.protocol.errors import ErrorCode, LmxError, ProtocolError
from lmx.protocol.messages.control import Done, GetStatus, ModelView, Status
from lmx.router.supervisor.directory import LOADED_STATES, Directory, shown_state
from lmx.router.supervisor.link import SupervisorLink

COMMAND_DEADLINE_S: Final = 10.0
"""For what is begun, or looked up, and not waited for."""

_STATUS_DEADLINE_S: Final = 2.0

_MEMORY_S: Final = 8.0
"""For a killed worker's end, and to see whether its memory comes back."""

_MEMORY_POLL_S: Final = 0.1

_Reply = TypeVar("_Reply")


async def ask(
    supervisor: SupervisorLink, question: Any, kind: type[_Reply], deadline_s: float
) -> _Reply:
    """Return the reply to a question, which must be of a kind. Raises as
    :meth:`SupervisorLink.ask` does."""
    reply = await supervisor.ask(question, deadline_s)
    if not isinstance(reply, kind):
        raise ProtocolError(f"{type(reply).__name__} is no reply to {type(question).__name__}")
    return reply


async def command(supervisor: SupervisorLink, question: Any) -> Done:
    """Have something begun."""
    return await ask(supervisor, question, Done, COMMAND_DEADLINE_S)


async def live_status(supervisor: SupervisorLink) -> dict[str, Any]:
    """Return the supervisor's status: ``supervisor``, ``router`` and ``workers``, by model."""
    return (await ask(supervisor, GetStatus(), Status, _STATUS_DEADLINE_S)).status


async def memory_back(
    supervisor: SupervisorLink, model_id: str, pid: int | None
) -> dict[str, Any] | None:
    """Return what came back of an ended worker's memory, once that was measured. None: it was not
    in time, or nobody tells."""
    deadline_s = time.monotonic() + _MEMORY_S
    while pid is not None and time.monotonic() < deadline_s:
        try:
            line = line_of(await live_status(supervisor), model_id)
        except LmxError:
            return None
        last = None if line is None else line["last_exit"]
        if last is not None and last.get("pid") == pid and last.get("memory") is not None:
            found: dict[str, Any] = last["memory"]
            return found
        if line is None:
            return None  # it was removed
        await asyncio.sleep(_MEMORY_POLL_S)
    return None


def line_of(status: Mapping[str, Any], model_id: str) -> dict[str, Any] | None:
    """Return what a status says of a model, None if it is not there."""
    lines: list[dict[str, Any]] = status["workers"]
    return next((line for line in lines if line["model"] == model_id), None)


def known_model(directory: Directory, name: str) -> ModelView | None:
    """Return the model of a name, None if there is none."""
    return directory.resolve(name) if directory.knows(name) else None


def is_loaded(model: ModelView) -> bool:
    """Return whether a model is in memory and answers."""
    return shown_state(model) in LOADED_STATES


def is_loaded_line(line: Mapping[str, Any]) -> bool:
    """Return :func:`is_loaded` for a model's line of a status."""
    return line["state"] in LOADED_STATES


@contextmanager
def params_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of the block name this route's fields: ``names`` has them by those of the
    supervisor's questions (``model`` for all that is about which model, ``source`` for what a
    model is made of, also when that comes out only as it is fetched)."""
    try:
        yield
    except LmxError as error:
        of_source = error.code is ErrorCode.MODEL_SOURCE_INVALID
        param = error.param or ("source" if of_source else None)
        if param is None or param not in names:
            raise
        # Another object: requests that wait for the same model got this one too.
        raise type(error)(
            error.code,
            error.message,
            param=names[param],
            retry_after_s=error.retry_after_s,
            final=error.final,
        ) from error
