"""Where requests wait for a model that is not ready: one question for all of them, in line.

How far a model is on its way to being ready, in words and in seconds. Pure.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from dataclasses import dataclass, field
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, ProtocolError, UnavailableError
from lmx.protocol.fair_share import has_room
from lmx.protocol.host.ordinal import ordinal
from lmx.protocol.messages.control import Acquire, Acquired, Withdraw
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import LoadPhase, SlotState, WorkerState
from lmx.router.supervisor.link import SupervisorLink

_ADVANCING: Final = frozenset({SlotState.FETCHING, SlotState.OCCUPIED})

_LOAD_S: Final = 10.0
"""A load of which nothing is known yet: some gigabytes from an SSD, and the start of a process."""

_THEN_S: Final[dict[LoadPhase, float]] = {
    LoadPhase.DOWNLOAD: 20.0,
    LoadPhase.CONVERT: 10.0,
    LoadPhase.CHECK: 10.0,
    LoadPhase.START: 8.0,
    LoadPhase.WEIGHTS: 2.0,
    LoadPhase.WARMUP: 0.0,
}
"""What usually follows a phase."""

_LEAST_FRACTION: Final = 0.01
"""Of less progress no pace can be told."""

_LONGEST_S: Final = 600.0
"""A client that is told to wait longer than this had better ask again meanwhile."""

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
    """How fast a load goes, from when it was first looked at in its present phase. Until that
    shows, the supervisor's word holds: it knows what loads of this model took."""

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
            # One model after the other gets its turn.
            return (model.position or 1) * _LOAD_S
        return then_s + _LOAD_S


_ANSWER_MARGIN_S: Final = 5.0
"""The supervisor answers within the wait it was given; this much later it has failed to."""

_AGAIN_S: Final = 0.25
"""Between two questions about one model."""

_LEAST_WAIT_S: Final = 0.05

_SILENCE_GRACE_S: Final = 5.0
"""A supervisor that is being replaced is gone for a second or two, or for some of them on a
machine that is busy loading; this much longer than a silence is allowed to last anyway."""

_UNKNOWN_S: Final = 5.0

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Waiter:
    """One request in line. Times are on the monotonic clock."""

    arrived_s: float
    deadline_s: float
    request_id: str
    owner: str
    told: asyncio.Future[str]


@dataclass(slots=True, eq=False)
class _Line:
    """Those that wait for one model, the earliest first."""

    model_id: str
    waiters: list[_Waiter] = field(default_factory=list)
    pace: LoadPace = field(default_factory=LoadPace)
    asking: asyncio.Task[None] | None = None

    def release(self, instance: str) -> None:
        # A future wakes its request through the loop's queue: in this order.
        for waiter in self.waiters:
            if not waiter.told.done():
                waiter.told.set_result(instance)
        self.waiters.clear()

    def fail(self, error: LmxError) -> None:
        for waiter in self.waiters:
            if not waiter.told.done():
                waiter.told.set_exception(error)
        self.waiters.clear()


class WaitingRoom:
    """Asks the supervisor once for all requests that want a model, and again while some wait.

    A line takes as many as its model's ``max_waiting``, of no owner so many that others find no
    room (:mod:`lmx.protocol.fair_share`), and those that come back from a worker
    on its way out, who stood in it before. It is released in the order of arrival, and each in
    it waits until its own deadline. Who leaves frees a place; the last one takes the question
    back, so that nobody gives way for it. A load that has begun goes on: others may want it. Used
    from one event loop only.
    """

    def __init__(self, supervisor: SupervisorLink, load_wait_s: float) -> None:
        self.load_wait_s = load_wait_s
        self._supervisor = supervisor
        self._lines: dict[str, _Line] = {}
        self._closed: LmxError | None = None

    def waiting(self, model_id: str) -> int:
        """Return how many requests wait for a model."""
        line = self._lines.get(model_id)
        return 0 if line is None else len(line.waiters)

    def place(self, model_id: str, request_id: str) -> int | None:
        """Return which place in a model's line a request has, 1 for the next; None: none."""
        line = self._lines.get(model_id)
        waiters = () if line is None else line.waiters
        places = (n for n, one in enumerate(waiters, 1) if one.request_id == request_id)
        return next(places, None)

    @property
    def all_waiting(self) -> int:
        """How many requests wait for any model."""
        return sum(len(line.waiters) for line in self._lines.values())

    def news(self, model_id: str) -> str | None:
        """Return the state and progress of a model that requests wait for, else None."""
        model = self._view(model_id)
        return progress_text(model) if model is not None and self.waiting(model_id) else None

    async def acquire(self, model_id: str, request_id: str, owner: str, arrived_s: float) -> str:
        """Return the instance in which the model is READY, loading it if need be.

        Waits until ``load_wait_s`` after ``arrived_s``, which is on the monotonic clock. Raises
        QUEUE_FULL when too many wait already, of ``owner`` or of all, MODEL_LOADING when it takes
        too long, what the supervisor denied it with, SUPERVISOR_UNAVAILABLE when there is none,
        or what the room was closed with.
        """
        if self._closed is not None:
            raise self._closed
        line = self._lines.get(model_id)
        if line is None:
            line = self._lines[model_id] = _Line(model_id)
            line.asking = asyncio.create_task(self._serve(line), name=f"acquire {model_id}")
        self._check_room(line, owner, arrived_s)
        waiter = _Waiter(
            arrived_s,
            arrived_s + self.load_wait_s,
            request_id,
            owner,
            asyncio.get_running_loop().create_future(),
        )
        # One that comes back from a worker on its way out keeps its place.
        insort(line.waiters, waiter, key=lambda one: one.arrived_s)
        try:
            async with asyncio.timeout(waiter.deadline_s - time.monotonic()):
                return await waiter.told
        except TimeoutError:
            if waiter.told.done() and not waiter.told.cancelled():
                return waiter.told.result()  # It came at the same moment.
            raise self._too_late(line, waiter) from None
        except asyncio.CancelledError:
            if line.waiters == [waiter]:
                self._withdraw(line)
            raise
        finally:
            if waiter in line.waiters:
                line.waiters.remove(waiter)

    def close(self, error: LmxError) -> None:
        """Whoever waits gets ``error``, and whoever comes; no more is asked."""
        self._closed = error
        for line in self._lines.values():
            line.fail(error)
            if line.asking is not None:
                line.asking.cancel()

    async def _serve(self, line: _Line) -> None:
        try:
            while line.waiters:
                await self._ask(line)
        except Exception:
            _log.exception("acquire.failed", model=line.model_id)
            line.fail(LmxError(ErrorCode.INTERNAL, "The router failed to ask for the model."))
        finally:
            # At once, not in a callback: who comes from now on must begin a line of its own.
            if self._lines.get(line.model_id) is line:
                del self._lines[line.model_id]

    def _withdraw(self, line: _Line) -> None:
        """Forget a line that its last request leaves; the next one begins another."""
        del self._lines[line.model_id]
        if line.asking is not None:
            line.asking.cancel()
        self._supervisor.tell(Withdraw(line.model_id))

    async def _ask(self, line: _Line) -> None:
        now_s = time.monotonic()
        oldest = line.waiters[0]
        left_s = max(waiter.deadline_s for waiter in line.waiters) - now_s
        question = Acquire(
            line.model_id,
            wait_s=max(left_s, _LEAST_WAIT_S),
            request_id=oldest.request_id,
            waited_s=now_s - oldest.arrived_s,
        )
        try:
            reply = await self._supervisor.ask(question, question.wait_s + _ANSWER_MARGIN_S)
        except LmxError as error:
            if not await self._worth_another(error):
                _log.info("acquire.denied", model=line.model_id, error=error.message)
                line.fail(error)
            return
        if isinstance(reply, Acquired):
            line.release(reply.instance)
        else:
            line.fail(ProtocolError(f"{type(reply).__name__} is no reply to Acquire"))

    async def _worth_another(self, error: LmxError) -> bool:
        """Return, after a pause, whether those who wait are to ask again."""
        if error.code is ErrorCode.SUPERVISOR_UNAVAILABLE:
            # It was replaced, or is being replaced: its successor has not heard of them.
            if not await self._supervisor.answers_again(_SILENCE_GRACE_S):
                return False
        elif error.code is not ErrorCode.MODEL_LOADING:
            return False
        await asyncio.sleep(_AGAIN_S)
        return True

    def _check_room(self, line: _Line, owner: str, arrived_s: float) -> None:
        model = self._view(line.model_id)
        if model is None:
            return  # The supervisor will say that it is not there any more.
        wait_s = line.pace.remaining_s(model, time.monotonic())
        # Who goes before others that wait comes back: it was they who found room.
        comes_back = bool(line.waiters) and arrived_s < line.waiters[-1].arrived_s
        own = sum(waiter.owner == owner for waiter in line.waiters)
        if not comes_back and not has_room(model.max_waiting, len(line.waiters), own):
            whose, who = (
                (len(line.waiters), "as many as may")
                if len(line.waiters) >= model.max_waiting
                else (f"{own} of your", "and the places left are kept for others")
            )
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{whose} requests wait for {line.model_id} already, {who}: "
                f"{progress_text(model)}. Try again in about {wait_s:.0f} s.",
                retry_after_s=wait_s,
            )

    def _too_late(self, line: _Line, waiter: _Waiter) -> UnavailableError:
        model = self._view(line.model_id)
        state, wait_s = f"{line.model_id} is not ready", _UNKNOWN_S
        if model is not None:
            state = progress_text(model)
            wait_s = line.pace.remaining_s(model, time.monotonic())
        place = ordinal(1 + sum(one.arrived_s < waiter.arrived_s for one in line.waiters))
        return UnavailableError(
            ErrorCode.MODEL_LOADING,
            f"{state}. The request waited {self.load_wait_s:g} s, as long as it may, and was "
            f"{place} of {len(line.waiters)} in line for it. Try again in about {wait_s:.0f} s.",
            retry_after_s=wait_s,
        )

    def _view(self, model_id: str) -> ModelView | None:
        directory = self._supervisor.latest
        return None if directory is None else directory.model(model_id)
