"""Models that don't fit together, with requests for all of them: how often they swap and how long
anybody waits, in simulated time."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmx.protocol.messages import control
from lmx.protocol.states import WorkerState
from lmx.supervisor.decisions.slots.demand import Requester
from tests.support.rigs.core_rig import CoreRig

RESIDENCY_S = 10.0
FAIR_S = 30.0
LOAD_S = 3.0
STEP_S = 0.25
BEAT_S = 1.0


@dataclass
class Request:
    model: str
    requested_at_s: float
    work_s: float
    begun_at_s: float | None = None


@dataclass
class SimulatedWorker:
    spawned_at_s: float
    ends_at_s: list[float] = field(default_factory=list)
    loaded: bool = False
    draining: bool = False
    beat_at_s: float = 0.0
    idle_since_s: float = 0.0


class Simulation:
    """Workers that do as workers do, and a router that sends to those it sees ready."""

    def __init__(self, needs: dict[str, int], budget: int) -> None:
        self.rig = CoreRig(
            needs, budget, memory={"min_residency_s": RESIDENCY_S, "fair_wait_s": FAIR_S}
        )
        self.workers: dict[str, SimulatedWorker] = {}
        self.asked: dict[Requester, Request] = {}
        self.done: list[Request] = []
        self.heard = 0
        self.replied = 0

    def request(self, model: str, work_s: float) -> None:
        self._send(Request(model, self.rig.now_s, work_s))

    def _send(self, request: Request) -> None:
        now_s = self.rig.now_s
        worker = self.rig.slot(request.model).ready_worker
        simulated = self.workers.get(worker.instance) if worker else None
        if simulated is not None and not simulated.draining:
            request.begun_at_s = now_s
            simulated.ends_at_s.append(now_s + request.work_s)
            self.done.append(request)
            return
        requester = self.rig.ask(request.model, 3600.0, now_s - request.requested_at_s)
        self.asked[requester] = request

    def step(self) -> None:
        now_s = self.rig.now_s
        for model in self.rig.core.slots:
            self._live(model, now_s)
        self.rig.at(now_s + STEP_S)
        for instance in list(self.rig.actions.parted):
            self.rig.settle(instance)
        replies, self.replied = (
            self.rig.actions.replies[self.replied :],
            len(self.rig.actions.replies),
        )
        for requester, answer in replies:
            assert isinstance(answer, control.Acquired)
            self._send(self.asked.pop(requester))

    def _live(self, model: str, now_s: float) -> None:
        worker = self.rig.slot(model).worker
        if worker is None:
            return
        me = self.workers.setdefault(worker.instance, SimulatedWorker(now_s))
        if me.ends_at_s:
            me.ends_at_s = [end_s for end_s in me.ends_at_s if end_s > now_s]
            if not me.ends_at_s:
                me.idle_since_s = now_s
        if not me.loaded and now_s >= me.spawned_at_s + LOAD_S:
            me.loaded, me.idle_since_s = True, now_s
            self.rig.bring_up(model)
        asked = [m for m in self.rig.sent(model) if isinstance(m, control.Drain)]
        if worker.state is WorkerState.STOPPING:
            assert not me.ends_at_s, "a stream was cut"
            self.rig.exits(model)
        elif worker.state is WorkerState.DRAINING and not me.draining:
            if asked[-1].if_idle and me.ends_at_s:
                self.rig.said(model, control.DrainRefused, len(me.ends_at_s))
            else:
                me.draining = True
        if me.draining and not me.ends_at_s and worker.state is WorkerState.DRAINING:
            self.rig.said(model, control.Drained)
        elif me.loaded and now_s >= me.beat_at_s + BEAT_S and self.rig.slot(model).worker:
            me.beat_at_s = now_s
            self.rig.beat(model, rows=len(me.ends_at_s), idle_for_s=now_s - me.idle_since_s)

    def longest_wait_s(self) -> float:
        waits = [
            (self.rig.now_s if one.begun_at_s is None else one.begun_at_s) - one.requested_at_s
            for one in (*self.done, *self.asked.values())
        ]
        return max(waits)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.3, 2.0, 8.0]),
    st.sampled_from([1.0, 4.0, 15.0]),
)
@example(seed=3, every_s=0.3, work_s=15.0)
def test_two_models_that_do_not_fit_alternate_in_batches(
    seed: int, every_s: float, work_s: float
) -> None:
    """However dense or sparse the requests: at most one swap for each residency, and nobody
    waits longer than for one turn of the other model and one of its own load."""
    random = Random(seed)
    simulation = Simulation({"a": 600, "b": 600}, 1000)
    next_s = 0.0
    length_s = 400.0
    while simulation.rig.now_s < length_s:
        while next_s <= simulation.rig.now_s:
            simulation.request(random.choice("ab"), random.uniform(0.5, 1.5) * work_s)
            next_s += random.expovariate(1 / every_s)
        simulation.step()
    core = simulation.rig.core
    assert core.swaps_total <= length_s / (RESIDENCY_S + LOAD_S) + 1
    assert core.swaps_total >= 2
    # The cap, what runs then, the load; two beats of either model, and a step for each message
    # between them.
    bound_s = max(FAIR_S, RESIDENCY_S + LOAD_S) + 1.5 * work_s + LOAD_S + 4 * BEAT_S + 8 * STEP_S
    assert simulation.longest_wait_s() <= bound_s
    if every_s == 0.3:
        assert core.swaps_total < len(simulation.done) / 20, "in batches"


@pytest.mark.parametrize("count", [3, 4])
def test_one_request_gets_its_turn_however_busy_the_others_are(count: int) -> None:
    """Models that never have an idle moment fill the memory."""
    names = "abcd"[:count]
    simulation = Simulation(dict.fromkeys(names, 400) | {"x": 700}, 400 * (count - 1))
    for tick in range(1200):
        for place, name in enumerate(names[:-1]):
            if tick % 8 == place:
                simulation.request(name, 5.0)
        if tick == 120:
            simulation.request("x", 1.0)
        simulation.step()
    (last,) = [one for one in simulation.done if one.model == "x"]
    assert last.begun_at_s is not None
    assert last.begun_at_s - last.requested_at_s <= FAIR_S + 5.0 + LOAD_S + 3 * BEAT_S


def test_requests_for_one_model_are_served_in_one_turn() -> None:
    """Collation: all that waits for a model when it is ready is released together."""
    simulation = Simulation({"a": 600, "b": 600}, 1000)
    for _ in range(20):
        simulation.request("a", 1.0)
        simulation.request("b", 1.0)
    while simulation.asked and simulation.rig.now_s < 100:
        simulation.step()
    assert len(simulation.done) == 40
    assert simulation.rig.core.swaps_total == 1
