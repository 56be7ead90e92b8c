"""Decides what is done when memory runs out: the level of the pressure, and which worker is asked
to give up a request or is killed. This module is pure.

The level rises at once and falls late. At HARD one worker at a time is asked twice to give up a
request, and is killed if that was not enough. No worker is asked or killed while other programs
fill the memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmx.protocol.states import MemoryPressure
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.memory_reading import KernelPressure, MemoryReading

MARGIN_SHARE: Final = 0.02
"""A level is left only this far below its line. Otherwise it would change with every request."""

CALM_S: Final = 3.0
"""A level is left only after the memory was below that for this long without a break."""

SETTLE_S: Final = 1.0
"""The time from HARD, or from a worker's end, to the first request that is preempted. A peak may
pass meanwhile, and freed memory takes a moment to be counted."""

EVICT_S: Final = 3.0
"""The same time while an idle model is about to be evicted, which costs nobody an answer."""

ASK_S: Final = 3.0
"""How long a request has to end, its memory to be freed and a heartbeat to report it."""

ASKS: Final = 2

GONE_S: Final = 30.0
"""A killed process that is still there after this long hangs in a driver, and never goes."""

_INNOCENT: Final = 3
"""Workers that hold less than a third of what other programs hold do not fill the memory."""

_LEVELS: Final = (MemoryPressure.NONE, MemoryPressure.SOFT, MemoryPressure.HARD)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines at which the levels begin."""

    soft: float
    """A share of the machine's memory."""
    hard: float
    """A share of the machine's memory. Both shares count only where the system does not say by
    itself how short memory is."""
    budget_bytes: int
    """The memory budget of lmx."""


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """A worker as the guard sees it."""

    instance: str
    model_id: str
    measured_bytes: int
    granted_bytes: int
    """What was reserved for it, without what was added later because it had taken it."""
    busy: bool = False
    loading: bool = False
    leaving: bool = False
    """Whether its end has begun, so that nothing more is asked of it."""

    @property
    def excess_bytes(self) -> int:
        """What it took beyond its reservation. A negative value is room that it has left."""
        return self.measured_bytes - self.granted_bytes


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the guard remembers from one reading to the next."""

    level: MemoryPressure = MemoryPressure.NONE
    """The level that holds."""
    calm_since_s: float | None = None
    """Since when a lower level would do; None if none would."""
    victim: str | None = None
    """The worker that was asked to give up a request, or was killed."""
    asks: int = 0
    """How often the victim was asked."""
    killed: bool = False
    """Whether the victim was killed."""
    at_s: float = 0.0
    """When the victim was asked or killed last. Without a victim: when HARD began, or the last
    victim went."""
    external_reported: bool = False
    """Whether it was reported that other programs fill the memory."""


@dataclass(frozen=True, slots=True)
class SetLevel:
    """Another level holds: notify the core and every worker."""

    level: MemoryPressure
    reason: str
    """Why, for people."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this worker to take one request out of its memory, the newest of the largest. The
    request continues later where it can, and fails where it can't."""

    instance: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this worker now."""

    instance: str
    detail: str
    """Why, and what to change, for people."""


@dataclass(frozen=True, slots=True)
class ReportExternalPressure:
    """The memory is full, and lmx can't change that. This is reported once until the pressure is
    over."""

    detail: str


Decision = SetLevel | Ask | Kill | ReportExternalPressure


def step(
    state: GuardState,
    reading: MemoryReading,
    workers: Sequence[WorkerMemory],
    lines: Lines,
    now_s: float,
) -> tuple[GuardState, tuple[Decision, ...]]:
    """Take a reading of the memory. Returns the new state and what must be done."""
    decisions: list[Decision] = []
    level, calm_since_s = _next_level(state, reading, workers, lines, now_s)
    if level is not state.level:
        decisions.append(SetLevel(level, reason(reading, workers, lines)))
        if MemoryPressure.HARD in (level, state.level):
            state = replace(state, victim=None, asks=0, killed=False, at_s=now_s)
    if level is MemoryPressure.NONE:
        return GuardState(), tuple(decisions)
    state = replace(state, level=level, calm_since_s=calm_since_s)
    if _others_fill(reading, workers, lines) and not state.external_reported:
        state = replace(state, external_reported=True)
        decisions.append(ReportExternalPressure(reason(reading, workers, lines)))
    if level is not MemoryPressure.HARD:
        return state, tuple(decisions)
    if wanted_level(reading, workers, lines) is not level and not state.killed:
        # The memory is between the line and where the level ends. What was asked has helped, and
        # must not lead to a kill when the line is crossed again.
        return replace(state, victim=None, asks=0, at_s=now_s), tuple(decisions)
    state, decision = _relieve(state, reading, workers, lines, now_s)
    return state, tuple(decisions) if decision is None else (*decisions, decision)


def wanted_level(
    reading: MemoryReading, workers: Sequence[WorkerMemory], lines: Lines, margin_share: float = 0.0
) -> MemoryPressure:
    """Return the level that a reading calls for, with all lines lower by ``margin_share``.

    More memory in use never makes the level lower, unless other programs use it and so make the
    part of lmx small.
    """
    stays = 1.0 - margin_share
    measured_bytes = sum(worker.measured_bytes for worker in workers)
    # If no worker took too much, the budget itself was lowered, or a load was larger than planned.
    # That costs nobody an answer: idle models are evicted.
    over = any(worker.excess_bytes > 0 for worker in workers)
    if over and measured_bytes > lines.budget_bytes * stays:
        return MemoryPressure.HARD
    machine = _machine_level(reading, lines, margin_share)
    if machine is MemoryPressure.HARD and not _is_minor(reading, workers):
        return MemoryPressure.HARD
    if machine is not MemoryPressure.NONE:
        return MemoryPressure.SOFT
    held_bytes = sum(max(worker.measured_bytes, worker.granted_bytes) for worker in workers)
    if max(measured_bytes, held_bytes if over else 0) > lines.budget_bytes * stays:
        return MemoryPressure.SOFT
    return MemoryPressure.NONE


def _machine_level(reading: MemoryReading, lines: Lines, margin_share: float) -> MemoryPressure:
    """Return the level that the machine alone calls for, whoever fills it."""
    match reading.kernel_pressure:
        case KernelPressure.NORMAL:
            return MemoryPressure.NONE
        case KernelPressure.WARNING:
            return MemoryPressure.SOFT
        case KernelPressure.CRITICAL:
            return MemoryPressure.HARD
        case None if reading.used_share >= lines.hard - margin_share:
            return MemoryPressure.HARD
        case None if reading.used_share >= lines.soft - margin_share:
            return MemoryPressure.SOFT
        case _:
            return MemoryPressure.NONE


def reason(reading: MemoryReading, workers: Sequence[WorkerMemory], lines: Lines) -> str:
    """Return a sentence with figures about how full the memory is, and of what."""
    measured_bytes = sum(worker.measured_bytes for worker in workers)
    kernel = ""
    if reading.kernel_pressure is not None:
        kernel = f", and macOS calls its memory pressure {reading.kernel_pressure.name.lower()}"
    return (
        f"{reading.used_share:.0%} of {format_bytes(reading.total_bytes)} are in use{kernel}; "
        f"lmx's models hold {format_bytes(measured_bytes)} of their budget of "
        f"{format_bytes(lines.budget_bytes)}, other programs about "
        f"{format_bytes(max(0, reading.used_bytes - measured_bytes))}"
    )


def _next_level(
    state: GuardState,
    reading: MemoryReading,
    workers: Sequence[WorkerMemory],
    lines: Lines,
    now_s: float,
) -> tuple[MemoryPressure, float | None]:
    here = _LEVELS.index(state.level)
    if _LEVELS.index(wanted := wanted_level(reading, workers, lines)) > here:
        return wanted, None
    if _LEVELS.index(wanted_level(reading, workers, lines, MARGIN_SHARE)) >= here:
        return state.level, None
    since_s = now_s if state.calm_since_s is None else state.calm_since_s
    if now_s - since_s < CALM_S:
        return state.level, since_s
    return _LEVELS[here - 1], None


def _relieve(
    state: GuardState,
    reading: MemoryReading,
    workers: Sequence[WorkerMemory],
    lines: Lines,
    now_s: float,
) -> tuple[GuardState, Ask | Kill | None]:
    """Take the next step with the victim, or choose a victim."""
    waited_s = now_s - state.at_s
    victim = next((worker for worker in workers if worker.instance == state.victim), None)
    if state.victim is not None and victim is None:
        return replace(state, victim=None, asks=0, killed=False, at_s=now_s), None
    if victim is not None and (state.killed or victim.leaving):
        if waited_s < GONE_S:
            return state, None
        victim = None
    if victim is not None and not _may_help(victim):
        victim = None  # It gave up its request, and now has nothing more to give up.
    if victim is None:
        if waited_s < _patience_s(workers):
            return state, None
        state = replace(state, victim=None, asks=0, killed=False)
        victim = _victim(workers)
        if victim is None:
            return state, None
    elif waited_s < ASK_S:
        return state, None
    # A load has no request to fail. It can be begun again, which an answer can't.
    if state.asks < ASKS and not victim.loading:
        asked = replace(state, victim=victim.instance, asks=state.asks + 1, at_s=now_s)
        return asked, Ask(victim.instance)
    killed = replace(state, victim=victim.instance, killed=True, at_s=now_s)
    return killed, Kill(victim.instance, _kill_detail(victim, reading, workers, lines))


def _patience_s(workers: Sequence[WorkerMemory]) -> float:
    """Return how long to wait before a victim is chosen: longer while a worker is about to end
    anyway, or an idle one can be evicted."""
    if any(worker.leaving for worker in workers):
        return GONE_S
    idle = any(not (worker.busy or worker.loading) for worker in workers)
    return EVICT_S if idle else SETTLE_S


def _victim(workers: Sequence[WorkerMemory]) -> WorkerMemory | None:
    """Return the worker that took most beyond its reservation; else the largest that loads; else
    the largest busy one.

    Returns None when all are idle and within their reservations, because the core evicts those that
    it may.
    """
    there = [worker for worker in workers if not worker.leaving and _may_help(worker)]
    if over := [worker for worker in there if worker.excess_bytes > 0]:
        return max(over, key=lambda worker: worker.excess_bytes)
    works = [worker for worker in there if worker.loading] or there
    return max(works, key=lambda worker: worker.measured_bytes, default=None)


def _may_help(worker: WorkerMemory) -> bool:
    """Return whether a worker has work to give up, or took more than is reserved for it."""
    return worker.busy or worker.loading or worker.excess_bytes > 0


def _others_fill(reading: MemoryReading, workers: Sequence[WorkerMemory], lines: Lines) -> bool:
    machine = _machine_level(reading, lines, 0.0)
    return machine is MemoryPressure.HARD and _is_minor(reading, workers)


def _is_minor(reading: MemoryReading, workers: Sequence[WorkerMemory]) -> bool:
    measured_bytes = sum(worker.measured_bytes for worker in workers)
    return measured_bytes * _INNOCENT < reading.used_bytes - measured_bytes


def _kill_detail(
    victim: WorkerMemory, reading: MemoryReading, workers: Sequence[WorkerMemory], lines: Lines
) -> str:
    return (
        f"lmx ended the worker because memory ran out: it held "
        f"{format_bytes(victim.measured_bytes)} with {format_bytes(victim.granted_bytes)} "
        f"reserved; {reason(reading, workers, lines)}. Lower the model's context_length or "
        "concurrency, or memory.budget_bytes, or close other programs"
    )
