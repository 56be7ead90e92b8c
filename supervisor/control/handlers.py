"""The registry of questions: one handler for each kind, and one reply for each question."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.host.lasting import begin
from lmx.supervisor.core.unavailable import denied
from lmx.supervisor.decisions.slots.demand import Requester

log = structlog.get_logger()

Handler = Callable[[Any, float], Any]
"""``handler(question, now_s)`` returns the reply, or a coroutine that returns it while the
supervisor continues. An :class:`LmxError` of the handler or its coroutine becomes ``Denied``."""

Waiter = Callable[[Any, Requester, float], Any]
"""``waiter(question, requester, now_s)`` has another part reply later. It may raise what a handler
may raise."""


def replacing() -> UnavailableError:
    """Return the error for what the next supervisor would not know of, while this one is being
    replaced by it."""
    return UnavailableError(
        ErrorCode.SHUTTING_DOWN,
        "the supervisor is being replaced: try again when that is done",
        retry_after_s=1.0,
    )


class Handlers:
    """Finds the handler of a question and sends its reply. Every question gets one reply, unless
    :meth:`close` comes first."""

    def __init__(self, reply: Callable[[Requester, Any], None]) -> None:
        self._reply = reply
        self._handlers: dict[type, Waiter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, handlers: Mapping[type, Handler]) -> None:
        """Add the handlers of more kinds of questions. Raises ``ValueError`` for a kind that has a
        handler already."""
        for kind, handler in handlers.items():
            self.add_waiter(kind, partial(_by_handler, handler))

    def add_waiter(self, kind: type, waiter: Waiter) -> None:
        """Add what has one kind of questions answered later. Raises ``ValueError`` likewise."""
        if kind in self._handlers:
            raise ValueError(f"two handlers for {kind.__name__}")
        self._handlers[kind] = waiter

    def answer(self, requester: Requester, question: Any, now_s: float) -> None:
        """Answer one question, now or in a task of its own."""
        kind = type(question)
        handler = self._handlers.get(kind)
        try:
            if handler is None:
                raise LmxError(ErrorCode.PROTOCOL_ERROR, f"{kind.__name__} is not a question")
            found = handler(question, requester, now_s)
        except LmxError as error:
            found = denied(error)
        if isinstance(found, Coroutine):
            self._answer_later(requester, found)
        elif found is not None:
            self._reply(requester, found)

    def close(self) -> None:
        """Give up the questions that were not answered yet."""
        for task in self._tasks:
            task.cancel()

    def _answer_later(self, requester: Requester, work: Coroutine[Any, Any, Any]) -> None:
        task = begin(self._work(requester, work), "the answer to a question")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, requester: Requester, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._reply(requester, await work)
        except LmxError as error:
            self._reply(requester, denied(error))
        except Exception as error:
            log.exception("control.message_failed")
            failed = OperationError(ErrorCode.INTERNAL, f"the supervisor failed on this: {error}")
            self._reply(requester, denied(failed))


def _by_handler(handler: Handler, question: Any, _requester: Requester, now_s: float) -> Any:
    return handler(question, now_s)
