"""Questions to the supervisor that have no reply yet, by the number each was sent under."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from lmx.protocol.codec import encode
from lmx.protocol.control import Denied
from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.router.errors import rejection

RECONNECT_S = 2.0
"""What a client is told to wait while there is no supervisor: about a restart of it."""


def unavailable(message: str) -> UnavailableError:
    """Return what those are told who need a supervisor when there is none."""
    return UnavailableError(ErrorCode.SUPERVISOR_UNAVAILABLE, message, retry_after_s=RECONNECT_S)


class Questions:
    """Sends questions by ``send``, which returns whether it could, and matches the replies.
    Used from one event loop only."""

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send
        self._correlations = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, question: Any, deadline_s: float) -> Any:
        """Return the reply to a question. Raises what it was denied with, what :meth:`fail` was
        given, or SUPERVISOR_UNAVAILABLE when no reply comes within ``deadline_s``."""
        correlation = next(self._correlations)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[correlation] = future
        try:
            if not self._send(encode(question, correlation)):
                raise unavailable("lmx's supervisor can't be reached.")
            async with asyncio.timeout(deadline_s):
                reply = await future
        except TimeoutError:
            raise unavailable("lmx's supervisor did not answer in time.") from None
        finally:
            del self._open[correlation]
        if isinstance(reply, Denied):
            raise rejection(
                reply.code,
                reply.message,
                param=reply.param,
                retry_after_s=reply.retry_after_s,
                final=reply.final,
            )
        return reply

    def answered(self, correlation: int, reply: Any) -> None:
        """A reply has come; one that nobody waits for any more is dropped."""
        future = self._open.get(correlation)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, error: LmxError) -> None:
        """Whoever waits for a reply gets ``error``."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)
