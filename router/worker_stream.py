"""One generation as the router's end of the wire sees it: fed by a link, taken by a handler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from lmx.protocol.data import Accepted, Delta, Finished
from lmx.protocol.errors import ErrorCode, GenerationError, LmxError

CREDIT_DELTAS: Final = 64
"""Deltas that may be under way or untaken. Beyond it the worker joins text by itself."""

_GRANT_DELTAS: Final = CREDIT_DELTAS // 2
"""Granted back in halves: a message for each delta would double the traffic."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was ready at once: deltas, and the end when it has come. Neither means: nothing
    arrived within the wait."""

    deltas: tuple[Delta, ...]
    finished: Finished | None


_NOTHING: Final = Batch((), None)


class WorkerStream:
    """Buffers one stream between its link (feeds) and its handler (takes).

    Holds at most ``CREDIT_DELTAS`` + 1 deltas: the last one may come without credit. Knows
    nothing of sockets; ``grant_due`` tells its link when to send credit.
    """

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self._accepted: Accepted | None = None
        self._deltas: list[Delta] = []
        self._finished: Finished | None = None
        self._error: LmxError | None = None
        self._taken = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether the worker will send nothing more."""
        return self._finished is not None or self._error is not None

    def feed_accepted(self, fact: Accepted) -> None:
        """The worker has taken the request."""
        self._accepted = fact
        self._wake()

    def feed_delta(self, delta: Delta) -> None:
        """Text has come. A worker that sends beyond its credit loses the stream."""
        if len(self._deltas) > CREDIT_DELTAS:
            self.fail(
                GenerationError(
                    ErrorCode.PROTOCOL_ERROR, "The worker sent more than it was allowed to."
                )
            )
            return
        self._deltas.append(delta)
        self._wake()

    def feed_finished(self, fact: Finished) -> None:
        """The generation ended well."""
        self._finished = fact
        self._wake()

    def fail(self, error: LmxError) -> None:
        """The stream is lost, or was refused. Text that came before is still taken first."""
        if not self.ended:
            self._error = error
            self._wake()

    async def accepted(self, deadline_s: float) -> Accepted:
        """Wait for the worker's verdict. Raises what it was refused with, or ``TimeoutError``."""
        async with asyncio.timeout(deadline_s):
            while self._accepted is None:
                if self._error is not None:
                    raise self._error
                await self._wait()
        return self._accepted

    async def take(self, wait_s: float) -> Batch:
        """Return all that is ready, waiting up to ``wait_s`` for something to be.

        Raises the stream's error once everything before it has been taken.
        """
        if not self._deltas and not self.ended:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(wait_s, self._wake)
            try:
                await self._wait()
            finally:
                timer.cancel()
            if not self._deltas and not self.ended:
                return _NOTHING
        if self._error is not None and not self._deltas:
            raise self._error
        batch = Batch(tuple(self._deltas), self._finished)
        self._taken += len(self._deltas)
        self._deltas.clear()
        return batch

    def grant_due(self) -> int:
        """Return how many deltas to grant the worker now, 0 for none yet; counts as granted."""
        if self._taken < _GRANT_DELTAS or self.ended:
            return 0
        due, self._taken = self._taken, 0
        return due

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
