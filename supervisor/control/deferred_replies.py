"""Answers to questions that take a while: each in a task, so that the supervisor goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.supervisor.core.slot import Asker
from lmx.supervisor.core.unavailable import denied

log = structlog.get_logger()


class LaterAnswers:
    """The answers that are being worked on. Every question gets one reply, unless
    :meth:`close` comes first."""

    def __init__(self, reply: Callable[[Asker, Any], None]) -> None:
        self._reply = reply
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, asker: Asker, work: Coroutine[Any, Any, Any]) -> None:
        """Reply with what ``work`` returns; what it raises becomes Denied."""
        task = asyncio.get_running_loop().create_task(self._answer(asker, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Give up what was not answered yet."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, asker: Asker, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._reply(asker, await work)
        except LmxError as error:
            self._reply(asker, denied(error))
        except Exception as error:
            log.exception("control.message_failed")
            failed = OperationError(ErrorCode.INTERNAL, f"the supervisor failed on this: {error}")
            self._reply(asker, denied(failed))
