"""Random operators, requests, crashes, fetches, pressure and clocks against models that don't all
fit: what holds after each event, whatever came before."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, LoadPhase, MemoryPressure, SlotState, WorkerState
from lmx.supervisor.core.actions import WorkerStart
from lmx.supervisor.core.placement_input import scene_of
from lmx.supervisor.decisions.placement import decide
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.decisions.worker import Worker
from tests.support.rigs.budgets import examples
from tests.support.rigs.core_rig import CoreRig, make_config

BUDGET = 1000
NEEDS = {"a": 300, "b": 400, "c": 500, "d": 1200, "e": 700}
SETTINGS: dict[str, Any] = {
    "models": {"a": {"keep_alive": 5}},
    "groups": [{"name": "g", "models": ["a", "e"], "swap": True}],
    "timing": {"beat_timeout_s": 15},
    "memory": {"min_residency_s": 3, "fair_wait_s": 8},
}


class Supervised(RuleBasedStateMachine):
    """``rows`` is the truth about each worker, of which the core hears by beats alone."""

    names = st.sampled_from("abcde")

    def __init__(self) -> None:
        super().__init__()
        self.rig = CoreRig(NEEDS, BUDGET, **SETTINGS)
        self.core, self.actions = self.rig.core, self.rig.actions
        self.actions.remote.add("c")
        self.deadlines: dict[int, float] = {}
        self.rows: dict[str, int] = {}
        self.closed: set[str] = set()
        self.pressure = MemoryPressure.NONE
        self.stopped = False
        self._signal, self._spawn = self.actions.signal, self.actions.spawn
        self.actions.signal = self.signal  # type: ignore[method-assign]
        self.actions.spawn = self.spawn  # type: ignore[method-assign]

    def signal(self, worker: Worker, number: int) -> None:
        if worker.cause in (ExitCause.EVICTED, ExitCause.EXPIRED):
            assert self.rows.get(worker.instance, 0) == 0, "a stream was cut to make room"
        self._signal(worker, number)

    def spawn(self, start: WorkerStart) -> int:
        assert self.pressure is MemoryPressure.NONE
        assert not self.stopped
        return self._spawn(start)

    @rule(name=names, wait_s=st.floats(1, 50), waited_s=st.floats(0, 20))
    def acquire(self, name: str, wait_s: float, waited_s: float) -> None:
        number = len(self.deadlines) + 1
        self.deadlines[number] = self.rig.now_s + wait_s
        self.rig.commands.answer(
            Requester(b"r", number), control.Acquire(name, wait_s, "r", waited_s), self.rig.now_s
        )

    @rule(
        name=names,
        kind=st.sampled_from(
            ["LoadModel", "UnloadModel", "KillModel", "RestartModel", "DrainModel", "ResetModel"]
        ),
    )
    def operate(self, name: str, kind: str) -> None:
        self.rig.commands.answer(Requester(b"cli", 1), getattr(control, kind)(name), self.rig.now_s)

    @rule(name=names, context=st.sampled_from([512, 1024, 2048]))
    def load_with(self, name: str, context: int) -> None:
        question = control.LoadModel(name, context)
        self.rig.commands.answer(Requester(b"cli", 1), question, self.rig.now_s)

    @rule(name=names)
    def files_change(self, name: str) -> None:
        self.core.files_changed(name)

    @rule(name=names, pinned=st.booleans())
    def pin(self, name: str, pinned: bool) -> None:
        self.rig.operate(control.PinModel(name, pinned))

    @rule(name=names, state=st.sampled_from(["starting", "ready"]))
    def hello(self, name: str, state: str) -> None:
        if self.core.slots[name].worker is not None:
            self.rig.said(name, control.WorkerHello, name, 1, WorkerState(state), 250)

    @rule(name=names, part=st.floats(0.1, 1))
    def loaded(self, name: str, part: float) -> None:
        worker = self.core.slots[name].worker
        if worker is not None:
            held = self.core.ledger.reserved_by(worker.instance)
            self.rig.said(name, control.Loaded, max(1, int(held * part)), 2048, 1.0)

    @rule(name=names, permanent=st.booleans())
    def load_fails(self, name: str, permanent: bool) -> None:
        worker = self.core.slots[name].worker
        if worker is not None and worker.state is WorkerState.LOADING:
            code = ErrorCode.MODEL_LOAD_FAILED
            self.rig.said(name, control.LoadFailed, code, "broken", permanent)

    @rule(name=names, rows=st.integers(0, 3))
    def works(self, name: str, rows: int) -> None:
        """Requests come straight from the router, and end."""
        worker = self.core.slots[name].worker
        if worker is not None and worker.state in (WorkerState.READY, WorkerState.DRAINING):
            had = self.rows.get(worker.instance, 0)
            closed = worker.instance in self.closed
            self.rows[worker.instance] = min(rows, had) if closed else rows

    @rule(name=names, keep_alive_s=st.sampled_from([None, 0.0, -1.0]))
    def beats(self, name: str, keep_alive_s: float | None) -> None:
        worker = self.core.slots[name].worker
        if worker is not None and worker.state in (WorkerState.READY, WorkerState.DRAINING):
            held = self.core.ledger.reserved_by(worker.instance)
            state = WorkerState.DRAINING if worker.instance in self.closed else WorkerState.READY
            self.rig.said(
                name, control.WorkerBeat, state, self.rows.get(worker.instance, 0), 0, 0.0,
                WorkerFigures(memory_bytes=held, requests_total=1), keep_alive_s=keep_alive_s,
            )  # fmt: skip

    @rule(name=names)
    def answers_drain(self, name: str) -> None:
        """As a worker does: it refuses while it is busy, or ends what it has."""
        worker = self.core.slots[name].worker
        if worker is None or worker.state is not WorkerState.DRAINING:
            return
        asked = [m for to, m in self.actions.sent if to == worker.instance]
        rows = self.rows.get(worker.instance, 0)
        polite = all(m.if_idle for m in asked if isinstance(m, control.Drain))
        if rows and polite and worker.instance not in self.closed:
            self.rig.said(name, control.DrainRefused, rows)
            return
        self.closed.add(worker.instance)
        if not rows:
            self.rig.said(name, control.Drained)

    @rule(name=names, status=st.sampled_from([0, 1, -9, -11, None]), memory=st.booleans())
    def exits(self, name: str, status: int | None, memory: bool) -> None:
        worker = self.core.slots[name].worker
        if worker is not None:
            self.core.worker_exited(worker.instance, status, self.rig.now_s, out_of_memory=memory)

    @rule(missing=st.sampled_from([0, 0, 50]))
    def memory_comes_back(self, missing: int) -> None:
        for instance in list(self.actions.parted):
            self.rig.settle(instance, missing)

    @rule(level=st.sampled_from([*MemoryPressure, MemoryPressure.NONE]))
    def pressure_changes(self, level: MemoryPressure) -> None:
        self.pressure = level
        self.core.set_pressure(level, self.rig.now_s)

    @rule(name=names)
    def guard_kills(self, name: str) -> None:
        worker = self.core.slots[name].worker
        if worker is not None:
            self.core.kill_for_memory(worker.instance, "it grew", self.rig.now_s)

    @rule(succeeds=st.booleans(), begun=st.booleans())
    def fetch_ends(self, succeeds: bool, begun: bool) -> None:
        if "c" in self.actions.fetching:
            self.core.fetch_advanced("c", LoadPhase.DOWNLOAD, 0.5, self.rig.now_s)
            self.actions.fetching.discard("c")
            outcome: Any = OperationError(ErrorCode.DOWNLOAD_FAILED, "x") if begun else OSError()
            if succeeds:
                outcome = self.actions.local_path(self.core.slots["a"].model)
            self.core.fetch_ended("c", outcome, self.rig.now_s)

    @precondition(lambda self: not self.stopped)
    @rule(name=names, context=st.integers(16, 20), keep_alive=st.sampled_from([-1, 3]))
    def configuration_changes(self, name: str, context: int, keep_alive: int) -> None:
        changed = {"context_length": context, "keep_alive": keep_alive}
        new = make_config(NEEDS, **{**SETTINGS, "models": {name: changed}})
        self.rig.settings.apply(new, self.rig.now_s)

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.rig.at(self.rig.now_s + seconds)
        self.core.flush(self.rig.now_s)

    @precondition(lambda self: not self.stopped)
    @rule(at_once=st.booleans())
    def shut_down(self, at_once: bool) -> None:
        self.stopped = True
        self.core.stop_workers(self.rig.now_s, at_once=at_once)

    @invariant()
    def the_budget_holds(self) -> None:
        assert self.core.ledger.held_bytes <= BUDGET

    @invariant()
    def bytes_are_held_exactly_by_living_workers_and_by_those_that_left(self) -> None:
        for slot in self.core.slots.values():
            assert (slot.worker is not None) == (slot.state is SlotState.OCCUPIED)
            if slot.worker is not None:
                assert self.core.ledger.reserved_by(slot.worker.instance) > 0
                assert self.actions.alive[slot.worker.pid] == slot.worker.instance
        assert len(self.actions.alive) == len(self.core.workers)
        assert self.core.ledger.returning_bytes == sum(self.actions.parted.values())

    @invariant()
    def every_question_is_answered_once_and_in_time_or_waits(self) -> None:
        answered = [
            requester.correlation
            for requester, _ in self.actions.replies
            if requester.identity == b"r"
        ]
        waiting = [
            waiter.requester.correlation
            for slot in self.core.slots.values()
            for waiter in slot.life.demand.waiters
        ]
        assert sorted(answered + waiting) == list(range(1, len(self.deadlines) + 1))
        assert all(self.deadlines[number] > self.rig.now_s for number in waiting)

    @invariant()
    def nobody_waits_for_what_is_not_coming(self) -> None:
        for slot in self.core.slots.values():
            if slot.life.demand.waiters:
                assert slot.ready_worker is None
                assert slot.life.wanted
                assert slot.state not in (SlotState.COLD, SlotState.QUARANTINED, SlotState.HELD)
                assert not self.stopped

    @invariant()
    def a_fetch_runs_exactly_while_its_slot_says_so(self) -> None:
        for slot in self.core.slots.values():
            fetching = slot.model.id in self.actions.fetching
            assert fetching == (slot.state is SlotState.FETCHING)

    @invariant()
    def what_excludes_each_other_is_never_there_together(self) -> None:
        assert not (self.core.slots["a"].worker and self.core.slots["e"].worker)

    @invariant()
    def nothing_is_left_undone(self) -> None:
        if not self.stopped:
            picture = scene_of(
                self.core.slots.values(), self.core.ledger, self.rig.settings.current,
                self.pressure, self.rig.now_s,
            )  # fmt: skip
            assert decide(picture, self.rig.now_s) == ()


TestSupervised = Supervised.TestCase
TestSupervised.settings = settings(
    max_examples=examples(300), stateful_step_count=50, deadline=None
)
