"""The core with nothing real around it: loads, waiting requests, failures, adoption, the end."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, LoadPhase, SlotState, WorkerState
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.control.models import ModelCommands
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.slots.demand import Demand, Requester
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.memory.inspection import Inspection, Question
from tests.support.fakes.fake_actions import FakeActions
from tests.support.rigs.core_rig import AtOnce, NoFile

REQUESTER = Requester(b"router", 7)


def make(
    needs: dict[str, int] | None = None, budget: int = 1000
) -> tuple[Core, FakeActions, Handlers]:
    needs = needs or {"a": 100, "b": 100}
    actions = FakeActions(needs)
    config = Config.model_validate(
        {
            "models": [
                {"id": name, "source": f"/{name}", "aliases": [f"{name}-alias"]} for name in needs
            ]
        }
    )
    settings = Settings(config)
    core = Core(settings, Ledger(budget), actions, "epoch")
    settings.on_change(core.reconfigured)
    added = AddedModels(NoFile(), {}, core, settings, unread, lambda: 0.0)
    loading = Loading(core, added, unread, lambda: 0.0)
    commands = AtOnce(actions.reply)
    models = ModelCommands(core, loading)
    commands.add(models.handlers)
    commands.add_waiter(control.Acquire, models.acquire)
    return core, actions, commands


async def unread(question: Question) -> Inspection:
    return Inspection(question)


def slot_of(core: Core, name: str = "a") -> Slot:
    return core.slot(name)


def worker_of(slot: Slot) -> Any:
    assert slot.worker is not None
    return slot.worker


def bring_up(core: Core, slot: Slot, now_s: float, memory_bytes: int = 90) -> str:
    instance: str = worker_of(slot).instance
    hello = control.WorkerHello(instance, slot.model.id, 1, WorkerState.STARTING)
    core.worker_reported(instance, hello, now_s)
    core.worker_reported(instance, control.Loaded(instance, memory_bytes, 2048, 0.1), now_s)
    return instance


def test_a_cold_model_is_loaded_once_for_all_who_wait() -> None:
    core, actions, commands = make()
    requesters = [Requester(b"router", number) for number in range(100)]
    for requester in requesters:
        commands.answer(requester, control.Acquire("a-alias", 60, "r"), 0.0)
    assert actions.spawned == ["a"]
    assert actions.replies == []
    instance = bring_up(core, slot_of(core), 1.0)
    assert [requester for requester, _ in actions.replies] == requesters
    assert {message for _, message in actions.replies} == {control.Acquired("a", instance)}
    commands.answer(REQUESTER, control.Acquire("a", 60, "r"), 2.0)
    assert actions.replies[-1] == (REQUESTER, control.Acquired("a", instance))


def test_routers_know_the_worker_before_they_are_told_to_use_it() -> None:
    core, actions, commands = make()
    commands.answer(REQUESTER, control.Acquire("a", 60, "r"), 0.0)
    core.flush(0.0)
    actions.told.clear()
    bring_up(core, slot_of(core), 1.0)
    assert [type(message) for message in actions.told] == [Snapshot, control.Acquired]


def test_bytes_are_held_until_the_exit_is_observed() -> None:
    core, _, commands = make()
    core.operator.load("a", 0.0)
    instance = bring_up(core, slot_of(core), 1.0)
    commands.answer(REQUESTER, control.UnloadModel("a"), 2.0)
    core.worker_reported(instance, control.Drained(instance), 3.0)
    core.tick(30.0, 0.0)
    assert core.ledger.reserved_bytes == 90
    core.worker_exited(instance, 0, 31.0)
    assert (core.ledger.reserved_bytes, core.ledger.returning_bytes) == (0, 90)
    core.memory_settled(instance, 0, 32.0)
    assert core.ledger.held_bytes == 0
    assert slot_of(core).state is SlotState.COLD


def test_a_killed_worker_comes_back_at_once_and_a_crashed_one_after_a_backoff() -> None:
    core, actions, commands = make()
    core.operator.load("a", 0.0)
    instance = bring_up(core, slot_of(core), 1.0)
    commands.answer(REQUESTER, control.KillModel("a"), 2.0)
    assert actions.signals[-1][1] == signal.SIGKILL
    core.worker_exited(instance, -9, 2.1)
    assert actions.spawned == ["a", "a"]
    assert actions.published[-1] == control.WorkerExited(
        instance, "a", ExitCause.KILLED, "an operator killed the model's worker"
    )
    instance = bring_up(core, slot_of(core), 3.0)
    core.worker_exited(instance, -11, 4.0)
    life = slot_of(core).life
    assert life.state is SlotState.BACKOFF
    assert life.retry_at_s is not None
    core.tick(life.retry_at_s, 0.0)
    assert actions.spawned == ["a", "a", "a"]


def test_waiting_requests_outlive_a_crash_and_are_told_of_a_failed_load() -> None:
    core, actions, commands = make()
    commands.answer(REQUESTER, control.Acquire("a", 600, "r"), 0.0)
    instance = worker_of(slot_of(core)).instance
    core.worker_exited(instance, -11, 1.0)
    assert actions.replies == []
    core.tick(100.0, 0.0)
    instance = worker_of(slot_of(core)).instance
    hello = control.WorkerHello(instance, "a", 1, WorkerState.STARTING)
    core.worker_reported(instance, hello, 100.0)
    failed = control.LoadFailed(instance, ErrorCode.MODEL_LOAD_FAILED, "no tensor lm_head")
    core.worker_reported(instance, failed, 101.0)
    core.worker_exited(instance, 1, 101.1)
    _, answer = actions.replies[-1]
    assert (answer.code, answer.message) == (ErrorCode.MODEL_LOAD_FAILED, "no tensor lm_head")


def test_quarantine_denies_until_an_operator_restarts() -> None:
    core, actions, commands = make()
    core.operator.load("a", 0.0)
    for number in range(4):
        core.worker_exited(worker_of(slot_of(core)).instance, 1, number * 2.0)
        if slot_of(core).state is SlotState.BACKOFF:
            core.tick(number * 2.0 + 1.9, 0.0)
            if slot_of(core).worker is None:
                retry_at_s = slot_of(core).life.retry_at_s
                assert retry_at_s is not None
                core.tick(retry_at_s, 0.0)
    assert slot_of(core).state is SlotState.QUARANTINED
    commands.answer(REQUESTER, control.Acquire("a", 60, "r"), 10.0)
    answer = actions.replies[-1][1]
    assert (answer.code, answer.retry_after_s) == (ErrorCode.MODEL_QUARANTINED, 300)
    assert "lmx restart a" in answer.message
    commands.answer(REQUESTER, control.RestartModel("a"), 11.0)
    assert slot_of(core).state is SlotState.OCCUPIED


def test_a_waiting_request_has_a_deadline() -> None:
    core, actions, commands = make()
    commands.answer(REQUESTER, control.Acquire("a", 5, "r"), 0.0)
    core.tick(4.9, 0.0)
    assert actions.replies == []
    core.tick(5.0, 0.0)
    answer = actions.replies[-1][1]
    assert answer.code is ErrorCode.MODEL_LOADING
    assert answer.message == "a is not ready yet: it is starting, start"
    assert answer.retry_after_s == 5.0, "ten seconds for a first load, of which five are over"
    assert slot_of(core).worker is not None, "the load goes on, others may want it"


def test_a_fetch_comes_before_the_load() -> None:
    core, actions, commands = make()
    actions.remote.add("a")
    commands.answer(REQUESTER, control.Acquire("a", 60, "r"), 0.0)
    assert (slot_of(core).state, actions.fetching) == (SlotState.FETCHING, {"a"})
    core.fetch_advanced("a", LoadPhase.DOWNLOAD, 0.4, 0.5)
    assert core.snapshot(1.0).models[0].fraction == 0.4
    core.fetch_ended("a", UnavailableError(ErrorCode.DOWNLOAD_FAILED, "no network"), 2.0)
    assert actions.replies[-1][1].code is ErrorCode.DOWNLOAD_FAILED
    assert (slot_of(core).state, slot_of(core).problem) == (SlotState.COLD, "no network")


def test_an_adopted_worker_is_neither_loaded_again_nor_counted_twice() -> None:
    core, actions, _ = make()
    assert core.adopt("0ld0", "a", 4242, 90, 0.0)
    assert not core.adopt("0ld1", "a", 4243, 90, 0.0), "one worker for a model"
    assert not core.adopt("0ld2", "unknown", 4244, 90, 0.0)
    hello = control.WorkerHello("0ld0", "a", 4242, WorkerState.READY, 95, 2048)
    core.worker_reported("0ld0", hello, 1.0)
    assert actions.spawned == []
    assert core.ledger.reserved_bytes == 95
    worker = slot_of(core).ready_worker
    assert worker is not None
    assert worker.pid == 4242


def test_the_ledger_follows_peaks() -> None:
    core, _, _ = make()
    core.operator.load("a", 0.0)
    instance = bring_up(core, slot_of(core), 1.0)
    for memory_bytes, reserved_bytes in ((50, 90), (900, 900), (60, 900)):
        beat = control.WorkerBeat(
            instance, WorkerState.READY, 1, 0, 0.0, WorkerFigures(memory_bytes=memory_bytes)
        )
        core.worker_reported(instance, beat, 2.0)
        assert core.ledger.reserved_bytes == reserved_bytes
    assert worker_of(slot_of(core)).figures.memory_bytes == 60


def test_what_is_due_while_shutting_down_is_not_started() -> None:
    core, actions, _ = make()
    actions.remote.add("b")
    core.operator.load("a", 0.0)
    core.operator.load("b", 0.0)
    core.worker_exited(worker_of(slot_of(core)).instance, 1, 0.1)
    core.begin_stopping()
    core.tick(100.0, 0.0)
    core.fetch_ended("b", actions.local_path(slot_of(core).model) or Path(), 100.0)
    assert actions.spawned == ["a"]


def test_an_adopted_worker_is_drained_before_it_has_said_hello() -> None:
    core, actions, commands = make()
    core.adopt("0ld0", "a", 4242, 90, 0.0)
    commands.answer(REQUESTER, control.RestartModel("a"), 0.1)
    assert actions.signals == []
    assert actions.sent == [("0ld0", control.Drain(False))]


def test_unload_does_not_forgive_a_quarantine() -> None:
    core, _, commands = make()
    quarantined = replace(slot_of(core).life, state=SlotState.QUARANTINED)
    core._store.put(replace(slot_of(core), life=quarantined))
    commands.answer(REQUESTER, control.UnloadModel("a"), 0.0)
    assert slot_of(core).state is SlotState.QUARANTINED


def test_a_second_unload_does_not_prolong_the_drain() -> None:
    core, _, commands = make()
    core.operator.load("a", 0.0)
    bring_up(core, slot_of(core), 1.0)
    commands.answer(REQUESTER, control.UnloadModel("a"), 2.0)
    deadline_s = worker_of(slot_of(core)).deadline_s
    commands.answer(REQUESTER, control.UnloadModel("a"), 30.0)
    assert worker_of(slot_of(core)).deadline_s == deadline_s


@pytest.mark.parametrize(
    "error",
    [
        OSError("no more processes"),
        TypeError("datetime.date"),
        OverflowError("too big"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
)
def test_a_worker_that_can_not_be_started_gives_its_bytes_back(error: Exception) -> None:
    core, actions, commands = make()
    actions.spawn_error = error
    commands.answer(REQUESTER, control.LoadModel("a"), 0.0)
    assert str(error) in actions.replies[-1][1].message
    assert core.ledger.reserved_bytes == 0


def test_an_estimate_that_fails_is_the_models_own_problem() -> None:
    core, actions, commands = make()
    actions.estimate_error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, "no config.json")
    commands.answer(REQUESTER, control.Acquire("a", 60, "r"), 0.0)
    assert actions.replies[-1][1].code is ErrorCode.MODEL_SOURCE_INVALID
    assert slot_of(core).problem == "no config.json"


def test_a_bug_in_one_slot_does_not_stop_the_clock_of_the_others() -> None:
    core, actions, commands = make()
    commands.answer(Requester(b"r", 1), control.Acquire("a", 5, "r"), 0.0)
    commands.answer(Requester(b"r", 2), control.Acquire("b", 5, "r"), 0.0)
    broken = replace(slot_of(core).life, demand=Demand((None,)))  # type: ignore[arg-type]
    core._store.put(replace(slot_of(core), life=broken))
    core.tick(6.0, 0.0)
    assert [requester.correlation for requester, _ in actions.replies] == [2]


def test_shutting_down_refuses_and_ends_everything() -> None:
    core, actions, commands = make()
    core.operator.load("a", 0.0)
    instance = bring_up(core, slot_of(core), 1.0)
    commands.answer(REQUESTER, control.Acquire("b", 60, "r"), 1.5)
    core.stop_workers(2.0, at_once=False)
    assert actions.replies[-1][1].code is ErrorCode.SHUTTING_DOWN
    core.worker_exited(instance, 0, 3.0)
    assert slot_of(core).state is SlotState.COLD
    commands.answer(REQUESTER, control.Acquire("a", 60, "r"), 4.0)
    assert actions.replies[-1][1].code is ErrorCode.SHUTTING_DOWN
    assert len(actions.spawned) == 2


def test_an_unknown_model_is_named_with_the_known_ones() -> None:
    core, _, _ = make()
    with pytest.raises(LmxError, match="known: a, b") as caught:
        core.slot("c")
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def test_a_snapshot_is_published_for_each_change_and_only_then() -> None:
    core, actions, _ = make()
    core.flush(0.0)
    assert core.revision == 1
    core.flush(0.1)
    core.tick(0.2, 0.0)
    core.flush(0.2)
    assert core.revision == 1
    core.operator.load("a", 1.0)
    core.flush(1.0)
    instance = bring_up(core, slot_of(core), 2.0)
    core.worker_reported(
        instance,
        control.WorkerBeat(instance, WorkerState.READY, 3, 0, 0.0, WorkerFigures(memory_bytes=95)),
        3.0,
    )
    core.flush(3.0)
    revisions = [m.revision for m in actions.published if isinstance(m, Snapshot)]
    assert revisions == list(range(1, core.revision + 1))
    assert core.revision == 3, "cold, starting, ready; a beat is no change"
