"""Where requests wait for a model that is not ready.

The queue of a model asks the supervisor once for all its requests, and keeps them in order. The
module also describes how far the model is on its way to being ready, in words and in seconds; that
part is pure.
"""

import asyncio
import time
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, ProtocolError, UnavailableError
from lmx.protocol.fair_share import has_capacity
from lmx.protocol.host.ordinal import ordinal
from lmx.protocol.messages.control import Acquire, Acquired, Withdraw
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import LoadPhase, SlotState, WorkerState
from lmx.router.supervisor.link import SupervisorLink

_ADVANCING: Final = frozenset({SlotState.FETCHING, SlotState.OCCUPIED})

_LOAD_S: Final = 10.0
"""The time that a load takes if nothing is known of it yet: reading some gigabytes from an SSD, and
starting a process."""

_THEN_S: Final[dict[LoadPhase, float]] = {
    LoadPhase.DOWNLOAD: 20.0,
    LoadPhase.CONVERT: 10.0,
    LoadPhase.CHECK: 10.0,
    LoadPhase.START: 8.0,
    LoadPhase.WEIGHTS: 2.0,
    LoadPhase.WARMUP: 0.0,
}
"""What usually follows after a phase."""

_LEAST_FRACTION: Final = 0.01
"""With less progress than this, no pace can be computed."""

_LONGEST_S: Final = 600.0
"""A client that would have to wait longer than this had better ask again meanwhile."""

_WORKER_WORDS: Final[dict[WorkerState, str]] = {
    WorkerState.STARTING: "is loading",
    WorkerState.LOADING: "is loading",
    WorkerState.READY: "is ready",
    WorkerState.DRAINING: "ends what it does, and is loaded again",
    WorkerState.STOPPING: "is being loaded again",
    WorkerState.EXITED: "is being loaded again",
}

_SLOT_WORDS: Final[dict[SlotState, str]] = {
    SlotState.COLD: "is about to be loaded",
    SlotState.QUEUED: "waits for memory",
    SlotState.FETCHING: "is being fetched",
    SlotState.OCCUPIED: "is loading",
    SlotState.BACKOFF: "failed, and is loaded again soon",
    SlotState.QUARANTINED: "is in quarantine",
    SlotState.HELD: "was drained by an operator",
}


def progress_text(model: ModelView) -> str:
    """Return a model's state and progress as one line: ``tiny is loading: weights 40%``."""
    if model.slot is SlotState.OCCUPIED and model.worker is not None:
        words = _WORKER_WORDS[model.worker]
    else:
        words = _SLOT_WORDS[model.slot]
    text = f"{model.model_id} {words}"
    if model.slot is SlotState.QUEUED and model.position is not None:
        return f"{text}, {ordinal(model.position)} in line"
    if model.phase is None or words not in ("is loading", "is being fetched"):
        return text
    done = "" if model.fraction is None else f" {int(100 * model.fraction)}%"
    return f"{text}: {model.phase.value}{done}"


@dataclass(slots=True)
class LoadPace:
    """How fast a load goes, measured from when it was first looked at in its present phase. Until
    the load has advanced, the supervisor's estimate is used: it knows how long earlier loads of
    this model took."""

    phase: LoadPhase | None = None
    began_s: float = 0.0
    began_fraction: float = 0.0

    def remaining_s(self, model: ModelView, now_s: float) -> float:
        """Return in how many seconds the model is likely to be ready; 1 to 600."""
        if model.phase is not self.phase:
            self.phase, self.began_s, self.began_fraction = (
                model.phase,
                now_s,
                model.fraction or 0.0,
            )
        return min(max(self._estimate_s(model, now_s), 1.0), _LONGEST_S)

    def _estimate_s(self, model: ModelView, now_s: float) -> float:
        then_s = 0.0 if model.phase is None else _THEN_S[model.phase]
        fraction = model.fraction or 0.0
        made = fraction - self.began_fraction
        if model.slot in _ADVANCING and made >= _LEAST_FRACTION:
            return then_s + (1.0 - fraction) * (now_s - self.began_s) / made
        if model.retry_after_s is not None:
            return model.retry_after_s
        if model.slot is SlotState.QUEUED:
            # The models are loaded one after the other.
            return (model.position or 1) * _LOAD_S
        return then_s + _LOAD_S


_ANSWER_MARGIN_S: Final = 5.0
"""The supervisor answers within the wait that the question names. If it takes this much longer, it
has failed to answer."""

_AGAIN_S: Final = 0.25
"""The pause between two questions about one model."""

_LEAST_WAIT_S: Final = 0.05

_SILENCE_GRACE_S: Final = 5.0
"""A supervisor that is being replaced is gone for a second or two, or for several seconds on a
machine that is busy loading. This is how much longer its silence is allowed to last than usual."""

_UNKNOWN_S: Final = 5.0

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Waiter:
    """One request in line."""

    arrived_s: float
    """When it arrived, on the monotonic clock."""
    deadline_s: float
    """How long it waits, on the same clock."""
    request_id: str
    owner: str
    answer: asyncio.Future[str]
    """The result: the worker's instance, or an error."""


@dataclass(slots=True, eq=False)
class _Queue:
    """The requests that wait for one model or its adapters, the earliest first."""

    model_id: str
    waiters: list[_Waiter] = field(default_factory=list)
    pace: LoadPace = field(default_factory=LoadPace)
    asking: asyncio.Task[None] | None = None
    """The task that asks the supervisor for the model."""

    def release(self, instance: str) -> None:
        # A future wakes its request through the loop's queue, so the requests wake in this order.
        for waiter in self.waiters:
            if not waiter.answer.done():
                waiter.answer.set_result(instance)
        self.waiters.clear()

    def fail(self, error: LmxError) -> None:
        for waiter in self.waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
        self.waiters.clear()


class ModelQueues:
    """Asks the supervisor once for all requests that want a model, and again while some wait.

    A line holds as many requests as its model's ``max_waiting``, and no owner may fill it so far
    that others find no place (:mod:`lmx.protocol.fair_share`). Requests that come back from a
    worker that is draining are always let in, because they stood in the line before. The line is
    released in the order of arrival; each request waits until its own deadline.

    A request that leaves frees its place. When the last one leaves, the question is withdrawn, so
    that no other model is unloaded for nothing. A load that has begun continues, because other
    requests may want the model. Used from one event loop only.
    """

    def __init__(self, supervisor: SupervisorLink, load_wait_s: float) -> None:
        self.load_wait_s = load_wait_s
        self._supervisor = supervisor
        self._queues: dict[str, _Queue] = {}
        self._closed: LmxError | None = None

    def waiting(self, model_id: str) -> int:
        """Return how many requests wait for a model or its adapters."""
        queue = self._queues.get(self._base_id(model_id))
        return 0 if queue is None else len(queue.waiters)

    def position(self, model_id: str, arrived_s: float) -> int | None:
        """Return the place in a model's queue of the request that arrived then, 1 for the next;
        None if it is not in the queue."""
        queue = self._queues.get(self._base_id(model_id))
        waiters = () if queue is None else queue.waiters
        place = bisect_left(waiters, arrived_s, key=lambda one: one.arrived_s)
        if place < len(waiters) and waiters[place].arrived_s == arrived_s:
            return place + 1
        return None

    @property
    def all_waiting(self) -> int:
        """How many requests wait for any model."""
        return sum(len(queue.waiters) for queue in self._queues.values())

    def progress(self, model_id: str) -> str | None:
        """Return the state and progress of a model; None if no request waits for it."""
        model = self._view(model_id)
        return progress_text(model) if model is not None and self.waiting(model_id) else None

    async def acquire(self, model_id: str, request_id: str, owner: str, arrived_s: float) -> str:
        """Return the instance in which the model is READY, loading it if need be.

        Waits until ``load_wait_s`` after ``arrived_s``, which is on the monotonic clock. Raises
        QUEUE_FULL if too many requests wait already, of ``owner`` or of all; MODEL_LOADING if the
        load takes too long; the error with which the supervisor refuses it; SUPERVISOR_UNAVAILABLE
        if there is no supervisor; or the error with which the queues were closed.
        """
        if self._closed is not None:
            raise self._closed
        model_id = self._base_id(model_id)
        queue = self._queues.get(model_id)
        if queue is None:
            queue = self._queues[model_id] = _Queue(model_id)
            queue.asking = asyncio.create_task(self._serve(queue), name=f"acquire {model_id}")
        self._check_capacity(queue, owner, arrived_s)
        waiter = _Waiter(
            arrived_s,
            arrived_s + self.load_wait_s,
            request_id,
            owner,
            asyncio.get_running_loop().create_future(),
        )
        # A request that comes back from a worker that is draining keeps its place.
        insort(queue.waiters, waiter, key=lambda one: one.arrived_s)
        try:
            async with asyncio.timeout(waiter.deadline_s - time.monotonic()):
                return await waiter.answer
        except TimeoutError:
            if waiter.answer.done() and not waiter.answer.cancelled():
                return waiter.answer.result()  # It came at the same moment.
            raise self._too_late(queue, waiter) from None
        except asyncio.CancelledError:
            if queue.waiters == [waiter]:
                self._withdraw(queue)
            raise
        finally:
            if waiter in queue.waiters:
                queue.waiters.remove(waiter)

    def close(self, error: LmxError) -> None:
        """End every request that waits, and every later one, with ``error``. The supervisor is
        asked for nothing more."""
        self._closed = error
        for queue in self._queues.values():
            queue.fail(error)
            if queue.asking is not None:
                queue.asking.cancel()

    async def _serve(self, queue: _Queue) -> None:
        try:
            while queue.waiters:
                await self._ask(queue)
        except Exception:
            _log.exception("acquire.failed", model=queue.model_id)
            queue.fail(LmxError(ErrorCode.INTERNAL, "The router failed to ask for the model."))
        finally:
            # At once, not in a callback: a request that comes from now on must begin a new line.
            if self._queues.get(queue.model_id) is queue:
                del self._queues[queue.model_id]

    def _withdraw(self, queue: _Queue) -> None:
        """Forget a line when its last request leaves; the next request begins a new line."""
        del self._queues[queue.model_id]
        if queue.asking is not None:
            queue.asking.cancel()
        self._supervisor.notify(Withdraw(queue.model_id))

    async def _ask(self, queue: _Queue) -> None:
        now_s = time.monotonic()
        oldest = queue.waiters[0]
        left_s = max(waiter.deadline_s for waiter in queue.waiters) - now_s
        question = Acquire(
            queue.model_id,
            wait_s=max(left_s, _LEAST_WAIT_S),
            request_id=oldest.request_id,
            waited_s=now_s - oldest.arrived_s,
        )
        try:
            reply = await self._supervisor.ask(question, question.wait_s + _ANSWER_MARGIN_S)
        except LmxError as error:
            if not await self._worth_another(error):
                _log.info("acquire.denied", model=queue.model_id, error=error.message)
                queue.fail(error)
            return
        if isinstance(reply, Acquired):
            queue.release(reply.instance)
        else:
            queue.fail(ProtocolError(f"{type(reply).__name__} is no reply to Acquire"))

    async def _worth_another(self, error: LmxError) -> bool:
        """Return, after a pause, whether the waiting requests are to ask again."""
        if error.code is ErrorCode.SUPERVISOR_UNAVAILABLE:
            # The supervisor was replaced, or is being replaced: its successor does not know the
            # requests.
            if not await self._supervisor.answers_again(_SILENCE_GRACE_S):
                return False
        elif error.code is not ErrorCode.MODEL_LOADING:
            return False
        await asyncio.sleep(_AGAIN_S)
        return True

    def _check_capacity(self, queue: _Queue, owner: str, arrived_s: float) -> None:
        model = self._view(queue.model_id)
        if model is None:
            return  # The supervisor will answer that it does not exist any more.
        wait_s = queue.pace.remaining_s(model, time.monotonic())
        # A request that is older than the last one in line has come back: it had a place here
        # before.
        comes_back = bool(queue.waiters) and arrived_s < queue.waiters[-1].arrived_s
        own = sum(waiter.owner == owner for waiter in queue.waiters)
        if not comes_back and not has_capacity(model.max_waiting, len(queue.waiters), own):
            whose, who = (
                (len(queue.waiters), "as many as may")
                if len(queue.waiters) >= model.max_waiting
                else (f"{own} of your", "and the places left are kept for others")
            )
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{whose} requests wait for {queue.model_id} already, {who}: "
                f"{progress_text(model)}. Try again in about {wait_s:.0f} s.",
                retry_after_s=wait_s,
            )

    def _too_late(self, queue: _Queue, waiter: _Waiter) -> UnavailableError:
        model = self._view(queue.model_id)
        state, wait_s = f"{queue.model_id} is not ready", _UNKNOWN_S
        if model is not None:
            state = progress_text(model)
            wait_s = queue.pace.remaining_s(model, time.monotonic())
        place = ordinal(1 + sum(one.arrived_s < waiter.arrived_s for one in queue.waiters))
        return UnavailableError(
            ErrorCode.MODEL_LOADING,
            f"{state}. The request waited {self.load_wait_s:g} s, as long as it may, and was "
            f"{place} of {len(queue.waiters)} in line for it. Try again in about {wait_s:.0f} s.",
            retry_after_s=wait_s,
        )

    def _base_id(self, model_id: str) -> str:
        model = self._view(model_id)
        return model_id if model is None or model.base is None else model.base

    def _view(self, model_id: str) -> ModelView | None:
        directory = self._supervisor.latest
        return None if directory is None else directory.model(model_id)
