"""Reads the memory at each tick, and carries out what :mod:`lmx.supervisor.decisions.pressure` and
:mod:`lmx.supervisor.decisions.reclaim` decide.

:class:`OomEvidence` decides whether the system killed a process because memory ran out.
"""

import signal
import statistics
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from lmx.protocol.messages.control import Pressure
from lmx.protocol.messages.status import ReturnedMemory
from lmx.protocol.states import MemoryPressure, WorkerState
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.decisions import pressure as memory_guard
from lmx.supervisor.decisions.ledger import Ledger, format_bytes
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.decisions.pressure import (
    Ask,
    Decision,
    GuardState,
    Kill,
    Lines,
    ReportExternalPressure,
    SetLevel,
    WorkerMemory,
)
from lmx.supervisor.decisions.reclaim import Balance, ExitedWorker, judge
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.events import Events
from lmx.supervisor.memory.system import (
    CGROUPS,
    PROC,
    Footprint,
    counters,
    memory_cgroups,
    read_footprint,
    read_memory,
)

_WINDOW_S: Final = 10.0
"""A kill explains an exit that comes within this time. The system needs seconds to tear down a
killed process of many gigabytes."""


def oom_kills(proc: Path, cgroups: Path) -> int | None:
    """Return how many processes the kernel has killed because memory ran out: in the cgroup of this
    process, which also counts kills for a shortage of the whole machine, else on the machine.

    Returns None if there is no count, as on macOS. The cgroup comes first because in a container
    the machine's count includes processes of others.
    """
    places = [
        (folder / name)
        for folder in memory_cgroups(proc, cgroups)[:1]
        for name in ("memory.events", "memory.oom_control")
    ]
    for path in (*places, proc / "vmstat"):
        count = counters(path).get("oom_kill")
        if count is not None:
            return count
    return None


class OomEvidence:
    """Compares the kernel's count of such kills before and after an exit. macOS has no count: there
    a SIGKILL that lmx did not send, while memory was short, counts as the system's.

    One kill explains one exit, and no exit that comes long after it.
    """

    def __init__(
        self,
        pressure: Callable[[], MemoryPressure],
        count: Callable[[], int | None] = lambda: oom_kills(PROC, CGROUPS),
        *,
        counted: bool = sys.platform == "linux",
    ) -> None:
        self._pressure = pressure
        self._count = count
        self._counted = counted
        self._seen: deque[tuple[float, int]] = deque()

    def tick(self, now_s: float) -> None:
        """Note the present count, and drop the counts from before the window."""
        count = self._count() if self._counted else None
        if count is not None:
            self._seen.append((now_s, count))
            while len(self._seen) > 1 and self._seen[1][0] <= now_s - _WINDOW_S:
                self._seen.popleft()

    def explains(self, status: int | None, now_s: float) -> bool:
        """Return whether the system caused an exit that came just now, with ``status`` as in
        ``Popen.returncode``. It can have caused only a SIGKILL, or an exit of unknown status."""
        if status not in (None, -signal.SIGKILL):
            return False
        if not self._counted:
            return status is not None and self._pressure() is not MemoryPressure.NONE
        if not self._seen:
            return False
        before = self._seen[0][1]
        self.tick(now_s)
        if self._seen[-1][1] <= before:
            return False
        self._seen = deque((at_s, count + 1) for at_s, count in self._seen)
        return True


log = structlog.get_logger()

_READ_S: Final = 0.5
_IDLE_READ_S: Final = 2.0
"""While every worker is idle, none grows. A request that comes is known by the next heartbeat."""
_AWAITED_READ_S: Final = 0.5 if sys.platform == "darwin" else 0.1
"""How often the memory is read while an exited worker's bytes are waited for, because the next
model may wait for them. macOS answers only a few such questions a second, for all programs
together; those beyond get figures that are up to a second old."""

_SAMPLES: Final = 10
"""The samples of five seconds. Their median is neither from a peak nor from a process that is half
torn down."""

_NOTIFIED_STATES: Final = (WorkerState.READY, WorkerState.DRAINING)
_LOADS: Final = (WorkerState.STARTING, WorkerState.LOADING)


class GuardedCore(Protocol):
    """What the watch needs from :class:`lmx.supervisor.core.core.Core`."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def workers(self) -> list[Worker]: ...

    def is_unread(self, instance: str) -> bool: ...

    def set_pressure(self, level: MemoryPressure, now_s: float) -> None: ...

    def kill_for_memory(self, instance: str, detail: str, now_s: float) -> None: ...

    def memory_settled(
        self,
        instance: str,
        model_id: str | None,
        missing_bytes: int,
        now_s: float,
        memory: ReturnedMemory | None = None,
    ) -> None: ...


class MemoryWatch:
    """The owner of the state of the memory guard, of exited workers' memory and of the kernel's
    kills.

    It runs in one thread, and nothing blocks. The list of exited workers is bounded by the machine,
    because each worker that stays in it misses at least half a gigabyte.
    """

    def __init__(
        self,
        core: GuardedCore,
        settings: Settings,
        send: Callable[[Worker, Any], None],
        events: Events,
        read: Callable[[], MemoryReading] = read_memory,
        footprint: Callable[[int], Footprint | None] = read_footprint,
        oom: OomEvidence | None = None,
    ) -> None:
        self.core = core
        self._settings = settings
        self.reading: MemoryReading | None = None
        self._send = send
        self._events = events
        self._read = read
        self._footprint = footprint
        self._oom = oom or OomEvidence(lambda: self.pressure)
        self._guard = GuardState()
        self._reported: dict[str, MemoryPressure] = {}
        self._granted: dict[str, tuple[bool, int]] = {}
        self._held: dict[str, deque[int]] = {}
        self._balances: deque[Balance] = deque(maxlen=_SAMPLES)
        self._exited_workers: list[ExitedWorker] = []
        self._read_at_s: float | None = None
        self._sampled_at_s: float | None = None
        self._unreadable = False

    @property
    def pressure(self) -> MemoryPressure:
        """The level that holds."""
        return self._guard.level

    def tick(self, now_s: float) -> None:
        """Let time pass. The machine is read twice a second, more often only while an exited
        worker's memory is waited for, and less often while no model computes or loads."""
        awaited = any(exited.missing_bytes is None for exited in self._exited_workers)
        pause_s = _AWAITED_READ_S if awaited else self._pause_s()
        if self._read_at_s is not None and now_s - self._read_at_s < pause_s:
            return
        self._read_at_s = now_s
        workers = self.core.workers
        try:
            reading = self._read()
            footprints = {worker.instance: self._footprint(worker.pid) for worker in workers}
        except OSError as error:  # Out of descriptors, most likely.
            self._cannot_read(error, now_s)
            return
        self._unreadable = False
        self.reading = reading
        self._oom.tick(now_s)
        self._guard_step(reading, workers, now_s)
        self._notify_workers(workers)
        balance = balance_of(reading, footprints)
        self._judge_exited_workers(balance, now_s)
        self._sample(balance, footprints, now_s)

    def quiet_until_s(self) -> float | None:
        """Return until when no tick is needed; None if each is."""
        if any(exited.missing_bytes is None for exited in self._exited_workers):
            return None
        return (self._read_at_s or 0.0) + self._pause_s()

    def _pause_s(self) -> float:
        calm = self.pressure is MemoryPressure.NONE and not self._exited_workers
        idle = all(one.state is WorkerState.READY and not one.busy for one in self.core.workers)
        return _IDLE_READ_S if calm and idle else _READ_S

    def left(self, worker: Worker, reserved_bytes: int, now_s: float) -> None:
        """Begin to watch whether an exited worker's memory comes back. The worker is no longer in
        ``core.workers``. A later tick always calls ``core.memory_settled``."""
        # One that has just begun may have ended before it was read: then its own figure counts.
        held_bytes = max([worker.figures.memory_bytes, *self._held.get(worker.instance, ())])
        self._exited_workers.append(
            ExitedWorker(
                worker.instance, worker.model_id, min(held_bytes, reserved_bytes),
                self._usual_balance(), now_s, footprint_bytes=held_bytes,
                begun_at_s=now_s if worker.stopping_at_s is None else worker.stopping_at_s,
            )
        )  # fmt: skip

    def killed_by_system(self, status: int | None, now_s: float) -> bool:
        """Return whether the system caused an exit that came just now, for ``ProcessExited``."""
        return self._oom.explains(status, now_s)

    def _guard_step(self, reading: MemoryReading, workers: list[Worker], now_s: float) -> None:
        memory = self._settings.current.memory
        lines = Lines(memory.soft_line, memory.hard_line, self.core.ledger.budget_bytes)
        seen = [self._worker_memory(worker) for worker in workers]
        self._guard, decisions = memory_guard.step(self._guard, reading, seen, lines, now_s)
        by_instance = {worker.instance: worker for worker in workers}
        for decision in decisions:
            self._carry_out(decision, by_instance, now_s)

    def _carry_out(self, decision: Decision, workers: Mapping[str, Worker], now_s: float) -> None:
        match decision:
            case SetLevel(level, reason):
                self._events.note("memory.pressure", None, reason, level=level.value)
                self.core.set_pressure(level, now_s)
            case Ask(instance):
                worker = workers[instance]
                self._events.note(
                    "memory.pressure",
                    worker.model_id,
                    "memory is short: its newest large request gives its memory back",
                    level=MemoryPressure.HARD.value,
                )
                self._reported[instance] = MemoryPressure.HARD
                self._send(worker, Pressure(MemoryPressure.HARD))
            case Kill(instance, detail):
                self.core.kill_for_memory(instance, detail, now_s)
            case ReportExternalPressure(detail):
                self._events.note(
                    "memory.pressure",
                    None,
                    f"other programs fill the memory, lmx ends nothing for it: {detail}",
                    level=self.pressure.value,
                )

    def _notify_workers(self, workers: list[Worker]) -> None:
        """Notify each worker once of a level. HARD is sent only to the workers that must act on
        it. An adopted worker is notified in any case, because the supervisor before this one may
        have sent it any level."""
        calm = self.pressure is MemoryPressure.NONE
        level = MemoryPressure.NONE if calm else MemoryPressure.SOFT
        for worker in workers:
            before = self._reported.get(
                worker.instance, None if worker.adopted else MemoryPressure.NONE
            )
            asked = before is MemoryPressure.HARD and self.pressure is MemoryPressure.HARD
            if worker.state in _NOTIFIED_STATES and before is not level and not asked:
                self._reported[worker.instance] = level
                self._send(worker, Pressure(level))

    def _worker_memory(self, worker: Worker) -> WorkerMemory:
        loading = worker.state in _LOADS
        # The ledger follows what a worker takes. What it was granted is what the ledger had when
        # the worker was first seen, and again when its load had been measured, or the files of a
        # model whose worker was adopted without a record had been read.
        provisional = loading or self.core.is_unread(worker.instance)
        granted = self._granted.get(worker.instance)
        if granted is None or (granted[0] and not provisional):
            granted = (provisional, self.core.ledger.reserved_by(worker.instance))
            self._granted[worker.instance] = granted
        return WorkerMemory(
            worker.instance, worker.model_id, worker.figures.held_bytes, granted[1], worker.busy,
            loading, worker.state in (WorkerState.STOPPING, WorkerState.EXITED),
        )  # fmt: skip

    def _judge_exited_workers(self, balance: Balance, now_s: float) -> None:
        judged = judge(self._exited_workers, balance, now_s)
        before, self._exited_workers = self._exited_workers, []
        for was, exited in zip(before, judged, strict=True):
            if exited.missing_bytes != 0:
                self._exited_workers.append(exited)
            if exited.missing_bytes != was.missing_bytes:
                self._settle(exited, was.missing_bytes, now_s)

    def _settle(self, exited: ExitedWorker, before: int | None, now_s: float) -> None:
        missing_bytes, reported_bytes = exited.missing_bytes or 0, before or 0
        memory = exited.returned(now_s) if before is None else None
        if memory is not None and memory.returned_bytes:
            self._events.note(
                "memory.returned", exited.model_id, memory.detail,
                returned_bytes=memory.returned_bytes, missing_bytes=missing_bytes,
                took_s=memory.took_s, instance=exited.instance,
            )  # fmt: skip
        if missing_bytes > reported_bytes:
            self._events.note(
                "memory.missing",
                exited.model_id,
                f"{format_bytes(missing_bytes)} of {format_bytes(exited.held_bytes)} did not "
                "come back after its worker's exit: quarantined, no model gets them; reboot "
                "if it stays so",
                missing_bytes=missing_bytes,
                held_bytes=exited.held_bytes,
            )
        elif reported_bytes > missing_bytes:
            self._events.note(
                "memory.returned",
                exited.model_id,
                f"{format_bytes(reported_bytes - missing_bytes)} came back that had been missing",
                returned_bytes=reported_bytes - missing_bytes,
                missing_bytes=missing_bytes,
            )
        self.core.memory_settled(exited.instance, exited.model_id, missing_bytes, now_s, memory)

    def _sample(
        self, balance: Balance, footprints: Mapping[str, Footprint | None], now_s: float
    ) -> None:
        if self._sampled_at_s is not None and now_s - self._sampled_at_s < _READ_S:
            return
        self._sampled_at_s = now_s
        for kept in (self._reported, self._granted, self._held):
            for instance in kept.keys() - footprints.keys():
                del kept[instance]
        for instance, footprint in footprints.items():
            if footprint is not None:
                held = self._held.setdefault(instance, deque(maxlen=_SAMPLES))
                held.append(footprint.held_bytes)
        if None not in footprints.values():  # One is gone, and its end not reported yet.
            self._balances.append(balance)

    def _usual_balance(self) -> Balance:
        if not self._balances:
            return Balance(0)  # Nothing was ever read: nothing can be missing of it.
        loose = [
            one.wired_slack_bytes for one in self._balances if one.wired_slack_bytes is not None
        ]
        return Balance(
            statistics.median_low(one.attainable_bytes for one in self._balances),
            statistics.median_low(loose) if loose else None,
        )

    def _cannot_read(self, error: OSError, now_s: float) -> None:
        if not self._unreadable:
            self._unreadable = True
            log.error("memory.unreadable", error=str(error))
        # Bytes that nobody can measure must not stay nobody's.
        for exited in [one for one in self._exited_workers if one.missing_bytes is None]:
            self._exited_workers.remove(exited)
            self.core.memory_settled(exited.instance, exited.model_id, 0, now_s)


def balance_of(reading: MemoryReading, footprints: Mapping[str, Footprint | None]) -> Balance:
    """Return what lmx can have at the moment of a reading, with each worker's footprint. Pure."""
    known = [footprint for footprint in footprints.values() if footprint is not None]
    held_bytes = sum(footprint.held_bytes for footprint in known)
    attainable_bytes = reading.available_bytes - reading.saved_bytes + held_bytes
    if reading.wired_bytes is None:
        return Balance(attainable_bytes)
    wired_slack_bytes = sum(footprint.wired_bytes for footprint in known) - reading.wired_bytes
    return Balance(attainable_bytes, wired_slack_bytes)
