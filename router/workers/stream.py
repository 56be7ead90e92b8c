"""One generation as the router's end of the wire sees it: fed by a link, taken by a handler."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.messages.data import Accepted, ChoiceEnded, Delta, Finished
from lmx.router.workers.phased_timeout import PhasedTimeout

CREDIT_DELTAS: Final = 256
"""How many deltas may be under way or untaken. Beyond that the worker joins text by itself. It is
less than the kernel holds for a slow client; with 64 the messages that give credit back took a
twentieth of a token's time, in router and worker."""

_PENDING_DELTAS: Final = 1024
"""When an answer ends, the text that waited for credit comes along, in one delta for each run of
one kind (content, reasoning, one call's arguments). No model makes as many runs as this. A client
that reads slowly can have all of a hundred calls waiting."""

_GRANT_DELTAS: Final = CREDIT_DELTAS // 2
"""Credit is given back in halves: a message for each delta would double the traffic."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was ready at once. It is empty if nothing arrived within the wait."""

    deltas: tuple[Delta, ...] = ()
    ended: tuple[ChoiceEnded, ...] = ()
    """The answers that ended after these deltas."""
    finished: Finished | None = None
    """The stream's end, once it has come."""


NOTHING: Final = Batch()

Sink = Callable[[Sequence[Delta]], bool]
"""Delivers deltas at once, without waiting, and returns whether it did. If it did not, it has done
nothing with them."""


class WorkerStream:
    """Buffers one stream between its link (feeds) and its handler (takes).

    Deltas that come while the handler waits for nothing else go through the ``sink``, if there is
    one, past the handler: a task's switch for each token of each stream was a third of the router's
    work. Everything else is the handler's: ends, errors, and what the sink can't deliver at once.

    It makes sure that all ``answers`` end, each once, before the stream does. It holds only few
    deltas more than ``CREDIT_DELTAS``: the last ones of an answer may come without credit. It knows
    nothing of sockets; ``grant_due`` shows its link when to send credit.
    """

    def __init__(self, stream_id: int, answers: int = 1) -> None:
        self.stream_id = stream_id
        self.sink: Sink | None = None
        self._limit_deltas = CREDIT_DELTAS + answers * _PENDING_DELTAS
        self._answers = answers
        self._open = set(range(answers))
        self._accepted: Accepted | None = None
        self.timeout = PhasedTimeout()
        self._deltas: list[Delta] = []
        self._ended: list[ChoiceEnded] = []
        self._finished: Finished | None = None
        self._error: LmxError | None = None
        self._taken = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether the worker will send nothing more."""
        return self._finished is not None or self._error is not None

    def feed_accepted(self, fact: Accepted) -> None:
        """Note that the worker has accepted the request."""
        self._accepted = fact
        self._wake()

    def feed_delta(self, delta: Delta) -> None:
        """Take a delta; :meth:`deliver` passes it on. A worker that sends far beyond its credit
        loses the stream."""
        if len(self._deltas) >= self._limit_deltas:
            self._fail_of_protocol("sent more than it was allowed to")
        elif not 0 <= delta.index < self._answers:
            self._fail_of_protocol(f"sent text of answer {delta.index} of {self._answers}")
        else:
            self._deltas.append(delta)

    def deliver(self) -> bool:
        """Pass on what was fed. Return whether the sink has delivered it: then the worker may get
        its credit back."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False  # The handler is busy, or about to take it with what has woken it.
        if self.sink is None:
            self._wake()
            return False
        try:
            delivered = self.sink(self._deltas)
        except Exception as error:  # It is raised where the stream is taken: no other one is hurt.
            waiter.set_exception(error)
            return False
        if delivered:
            self._taken += len(self._deltas)
            self._deltas.clear()
        else:
            self._wake()
        return delivered

    def feed_ended(self, fact: ChoiceEnded) -> None:
        """Note that one answer is whole."""
        if fact.index not in self._open:
            self._fail_of_protocol(f"ended answer {fact.index}, which is not open")
            return
        self._open.remove(fact.index)
        self._ended.append(fact)
        self._wake()

    def feed_finished(self, fact: Finished) -> None:
        """Note that the generation ended well."""
        if self._open:
            self._fail_of_protocol(f"ended with {len(self._open)} answer(s) open")
            return
        if self._accepted is None:
            # Otherwise a handler that waits for the verdict would wait until its deadline.
            self._fail_of_protocol("ended a request that it had not accepted")
            return
        self._finished = fact
        self._wake()

    def fail(self, error: LmxError) -> None:
        """Note that the stream is lost, or was refused. Text that came before is still taken
        first."""
        if not self.ended:
            self._error = error
            self._wake()

    async def accepted(self, queue_s: float, deadline_s: float) -> Accepted:
        """Wait for the worker's verdict: ``queue_s`` until the request's turn comes, and
        ``deadline_s`` from then on. Raises the error of its refusal, or ``TimeoutError``."""
        async with self.timeout.within(queue_s, deadline_s):
            while self._accepted is None:
                if self._error is not None:
                    raise self._error
                await self._wait()
        return self._accepted

    async def next_batch(self, wait_s: float) -> Batch:
        """Return all that is ready; wait up to ``wait_s`` if nothing is.

        Raises the stream's error once everything before it has been taken.
        """
        # Nearly always a delta has come: checking for that first saves two property calls.
        if not self._deltas and not self._ready:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(wait_s, self._wake)
            try:
                await self._wait()
            finally:
                timer.cancel()
            if not self._deltas and not self._ready:
                return NOTHING
        if self._error is not None and not self._deltas and not self._ended:
            raise self._error
        batch = Batch(tuple(self._deltas), tuple(self._ended), self._finished)
        self._taken += len(self._deltas)
        self._deltas.clear()
        self._ended.clear()
        return batch

    def grant_due(self) -> int:
        """Return how many deltas to grant the worker now, 0 if it is too early. They count as
        granted."""
        if self._taken < _GRANT_DELTAS or self.ended:
            return 0
        due, self._taken = self._taken, 0
        return due

    @property
    def _ready(self) -> bool:
        return bool(self._deltas or self._ended) or self.ended

    def _fail_of_protocol(self, what: str) -> None:
        self.fail(GenerationError(ErrorCode.PROTOCOL_ERROR, f"The worker {what}."))

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
