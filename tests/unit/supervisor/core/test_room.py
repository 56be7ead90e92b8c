"""Room for models: who waits, who gives way, who stays, through the core as others see it."""

import signal
import sys

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages import control
from lmx.protocol.messages.status import ReturnedMemory, WorkerFigures
from lmx.protocol.states import ExitCause, MemoryPressure, SlotState, WorkerState
from tests.support.rigs.core_rig import CoreRig, make_config

TWO = {"a": 700, "b": 400}


def test_a_model_that_does_not_fit_waits_and_an_idle_one_is_evicted() -> None:
    rig = CoreRig(TWO, up="a")
    rig.now_s = 2.0
    asked = rig.ask("b")
    assert rig.slot("b").state is SlotState.QUEUED
    assert rig.sent("a")[-1] != control.Drain(True), "it has only just come"
    assert rig.noted("model.queued") == [
        ("b", {"position": 1, "need_bytes": 400, "free_bytes": 300})
    ]
    rig.at(11.0)
    assert rig.sent("a")[-1] == control.Drain(True)
    assert rig.noted("model.evicting") == [("a", {"for_model": "b", "if_idle": True})]
    rig.said("a", control.Drained)
    rig.exits("a", settled=False)
    assert rig.slot("b").state is SlotState.QUEUED, "nobody has seen the bytes come back"
    assert rig.core.ledger.returning_bytes == 700
    ((instance, held_bytes),) = rig.actions.parted.items()
    assert held_bytes == 700
    rig.settle(instance)
    assert rig.state("b") == "starting"
    rig.bring_up("b")
    assert isinstance(rig.answer(asked), control.Acquired)
    assert rig.core.swaps_total == 1
    assert rig.slot("a").state is SlotState.COLD
    assert rig.slot("a").past.last_exit is not None
    assert rig.slot("a").past.exits == {ExitCause.EVICTED: 1}


def test_a_busy_model_that_refuses_stays_and_another_goes() -> None:
    rig = CoreRig({"a": 500, "b": 500, "c": 400}, up="ab")
    rig.at(20.0)
    rig.beat("b")  # used more recently than a
    asked = rig.ask("c")
    assert rig.sent("a")[-1] == control.Drain(True)
    late = rig.ask("a")  # meanwhile somebody wants it
    assert rig.answer(late) is None
    rig.said("a", control.DrainRefused, 1)
    assert isinstance(rig.answer(late), control.Acquired)
    assert rig.state("a") == "ready"
    assert rig.slot("a").life.wanted
    assert rig.sent("b")[-1] == control.Drain(True)
    rig.at(20.5)
    assert rig.sent("a").count(control.Drain(True)) == 1, "not asked in a loop"
    rig.drains("b")
    rig.bring_up("c")
    assert isinstance(rig.answer(asked), control.Acquired)


def test_fairness_drains_a_busy_model_without_a_deadline_for_its_streams() -> None:
    rig = CoreRig(TWO, up="a")
    rig.beat("a", rows=3)
    rig.now_s = 5.0
    rig.ask("b")
    for second in range(6, 35):
        rig.at(float(second))
        rig.beat("a", rows=3)
    assert control.Drain(False) not in rig.sent("a")
    rig.at(35.0)
    assert rig.sent("a")[-1] == control.Drain(False)
    for second in range(36, 600):
        rig.at(float(second))
        rig.beat("a", rows=2)
    assert rig.actions.signals == []
    assert rig.state("a") == "draining"
    assert rig.sent("a").count(control.Drain(False)) == 1, "it said that it drains"
    back = rig.ask("a")
    rig.drains("a")
    assert rig.state("b") == "starting"
    assert rig.slot("a").state is SlotState.QUEUED, "behind b now"
    assert rig.answer(back) is None


def test_the_first_to_ask_is_first_even_when_it_asks_again() -> None:
    rig = CoreRig({"a": 900, "b": 900, "c": 900}, up="a")
    rig.now_s = 100.0
    rig.beat("a", rows=1)
    rig.ask("b", wait_s=5)
    rig.now_s = 101.0
    rig.ask("c")
    views = {view.model_id: view.position for view in rig.core.snapshot(rig.now_s).models}
    assert views == {"a": None, "b": 1, "c": 2}
    rig.at(105.0)
    assert rig.core.positions(105.0) == {"b": 1, "c": 2}, "its place is kept for a moment"
    rig.now_s = 106.0
    rig.ask("b", waited_s=6)
    rig.at(120.0)
    assert rig.core.positions(120.0) == {"b": 1, "c": 2}
    rig.now_s = 121.0
    rig.ask("c", waited_s=60)
    assert rig.core.positions(121.0) == {"c": 1, "b": 2}


def test_one_that_nobody_waits_for_any_more_leaves_the_queue() -> None:
    rig = CoreRig(TWO, up="a")
    rig.beat("a", rows=1)
    asked = rig.ask("b", wait_s=5)
    rig.at(5.0)
    denied = rig.answer(asked)
    assert denied.code is ErrorCode.MODEL_LOADING
    assert "waits for memory, number 1 in the queue" in denied.message
    assert 1 <= denied.retry_after_s <= 120
    rig.at(7.5)
    assert rig.slot("b").state is SlotState.COLD


def test_everything_pinned_is_reported_at_once() -> None:
    rig = CoreRig(TWO, models={"a": {"pinned": True}}, up="a")
    rig.at(100.0)
    denied = rig.answer(rig.ask("b"))
    assert denied.code is ErrorCode.INSUFFICIENT_MEMORY
    # Time alone changes nothing.
    assert (denied.final, denied.retry_after_s) == (True, None)
    assert "everything else is pinned" in denied.message
    assert rig.slot("b").state is SlotState.COLD
    assert isinstance(rig.operate(control.PinModel("a-alias", False)), control.Done)
    assert rig.actions.pins == {"a": False}
    rig.ask("b")
    assert rig.sent("a")[-1] == control.Drain(True)


def test_a_pin_outlives_the_supervisor_and_ends_with_its_reason() -> None:
    rig = CoreRig(TWO, pins={"b": True})
    assert [view.pinned for view in rig.core.snapshot(0.0).models] == [False, True]
    rig.operate(control.PinModel("b", False))
    assert rig.actions.pins == {}, "the configuration says the same"
    rig.operate(control.PinModel("a", True))
    assert rig.actions.pins == {"a": True}
    assert rig.noted("model.pinned") == [("a", {})]
    assert rig.noted("model.unpinned") == [("b", {})]


def test_a_model_bigger_than_the_budget_is_reported_so_and_does_not_count_as_a_failure() -> None:
    rig = CoreRig({"a": 1001})
    for _ in range(10):
        assert "more than the whole budget" in rig.answer(rig.ask("a")).message
    denied = rig.operate(control.LoadModel("a"))
    assert denied.code is ErrorCode.INSUFFICIENT_MEMORY
    assert "more than the whole budget" in denied.message
    assert rig.slot("a").state is SlotState.COLD


def test_preloads_come_pinned_first_and_evict_nobody() -> None:
    rig = CoreRig(
        {"a": 400, "b": 400, "c": 400, "d": 100},
        models={"b": {"preload": False}, "c": {"pinned": True}},
    )
    rig.core.preload(0.0)
    assert rig.actions.spawned == ["c", "a", "d"]
    rig = CoreRig({"a": 700, "b": 400, "d": 100})
    rig.core.preload(0.0)
    assert rig.actions.spawned == ["a", "d"]
    assert rig.slot("b").state is SlotState.COLD
    assert rig.slot("b").problem is None


@pytest.mark.parametrize(
    ("memory", "model", "request_s", "stays_s"),
    [
        (60, None, None, 60),
        (60, 30, None, 30),
        (60, 30, 90.0, 90),
        ("5m", None, 0.0, 0),
        (-1, None, None, None),
        (60, -1, None, None),
        (60, 30, -1.0, None),
    ],
)
def test_an_idle_model_stays_for_as_long_as_asked(
    memory: object, model: object, request_s: float | None, stays_s: float | None
) -> None:
    rig = CoreRig(
        {"a": 100}, models={"a": {"keep_alive": model}}, memory={"keep_alive": memory}, up="a"
    )
    rig.now_s = 500.0
    rig.beat("a", rows=1, keep_alive_s=None)
    assert rig.core.status(500.0)[0].expires_in_s is None
    rig.now_s = 1000.0
    rig.beat("a", keep_alive_s=request_s)
    status = rig.core.status(1000.0)[0]
    if stays_s is None:
        assert status.expires_in_s is None
        rig.at(100_000.0)
        rig.beat("a", keep_alive_s=request_s, idle_for_s=99_000.0)
        assert control.Drain(True) not in rig.sent("a")
        return
    if stays_s:
        assert status.expires_in_s == stays_s
        rig.at(1000.0 + stays_s - 0.1)
        assert control.Drain(True) not in rig.sent("a")
    rig.at(1000.0 + stays_s)
    assert rig.sent("a")[-1] == control.Drain(True)
    rig.drains("a")
    assert rig.slot("a").past.exits == {ExitCause.EXPIRED: 1}
    assert rig.slot("a").state is SlotState.COLD
    assert rig.slot("a").past.restarts == 0
    assert rig.core.swaps_total == 0


def test_a_model_is_not_gone_before_the_requests_that_it_was_loaded_for_arrive() -> None:
    rig = CoreRig({"a": 100}, memory={"keep_alive": 0})
    rig.ask("a")
    rig.bring_up("a")
    rig.at(1.0)
    assert rig.state("a") == "ready"
    rig.at(2.0)
    assert rig.state("a") == "draining"


def test_under_pressure_nothing_begins_and_idle_models_go_one_by_one() -> None:
    rig = CoreRig(
        {"a": 100, "b": 100, "c": 100, "d": 100}, models={"a": {"pinned": True}}, up="abc"
    )
    rig.now_s = 5.0
    rig.beat("c")
    rig.core.set_pressure(MemoryPressure.SOFT, 5.0)
    assert [rig.state(name) for name in "abc"] == ["ready", "draining", "ready"]
    rig.ask("d")
    assert rig.slot("d").state is SlotState.QUEUED
    rig.drains("b")
    assert rig.state("c") == "draining"
    rig.drains("c")
    assert rig.core.swaps_total == 0
    rig.at(50.0)
    assert rig.slot("d").state is SlotState.QUEUED
    assert "short of memory" in (rig.core.snapshot(50.0).no_loads or "")
    rig.core.set_pressure(MemoryPressure.NONE, 51.0)
    assert rig.core.snapshot(51.0).no_loads is None
    assert rig.state("d") == "starting"


def test_routers_learn_that_no_process_can_be_started() -> None:
    rig = CoreRig({"a": 100})
    rig.actions.spawn_error = OSError(30, "Read-only file system")
    rig.ask("a")
    rig.core.flush(1.0)
    assert "Read-only" in (rig.actions.published[-1].no_loads or "")
    assert "Read-only" in (rig.core.snapshot(1.0).models[0].problem or "")
    rig.actions.spawn_error = None
    rig.at(40.0)
    rig.core.flush(40.0)
    assert rig.state("a") == "starting"
    assert rig.actions.published[-1].no_loads is None


@pytest.mark.parametrize("given_up", [control.UnloadModel("a"), control.DrainModel("a")])
def test_a_start_that_was_given_up_hinders_no_other(given_up: object) -> None:
    """No later start would say that a process can be started again."""
    rig = CoreRig({"a": 100})
    rig.actions.spawn_error = OSError(24, "Too many open files")
    rig.ask("a")
    assert rig.core.no_loads is not None
    rig.operate(given_up)
    assert rig.core.no_loads is None


def test_a_worker_killed_for_memory_is_a_failure_of_its_model() -> None:
    rig = CoreRig({"a": 100}, up="a")
    remembered = len(rig.actions.remembered)
    rig.core.kill_for_memory(rig.worker("a").instance, "it grew", 1.0)
    assert rig.actions.signals[-1][1] == 9
    rig.exits("a", -9)
    assert len(rig.actions.remembered) == remembered, "what it took was out of bounds"
    assert rig.slot("a").state is SlotState.BACKOFF
    assert rig.slot("a").past.exits == {ExitCause.OUT_OF_MEMORY: 1}
    rig.core.kill_for_memory("gone", "late", 1.0)


def test_a_mac_asks_a_worker_to_end_before_it_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wired memory may be gone otherwise, just when there is too little."""
    monkeypatch.setattr(sys, "platform", "darwin")
    rig = CoreRig({"a": 100}, up="a")
    rig.core.kill_for_memory(rig.worker("a").instance, "it grew", rig.now_s)
    assert rig.actions.signals[-1][1] == signal.SIGTERM
    rig.exits("a", 0)
    assert rig.slot("a").past.exits == {ExitCause.OUT_OF_MEMORY: 1}


def test_bytes_that_do_not_come_back_are_nobodys() -> None:
    rig = CoreRig(TWO, up="a")
    instance = rig.worker("a").instance
    rig.exits("a", -9, settled=False)
    rig.operate(control.UnloadModel("a"))
    rig.settle(instance, 650)
    assert rig.core.ledger.missing_bytes == 650
    denied = rig.answer(rig.ask("b"))
    assert "did not come back" in denied.message
    rig.settle(instance, 0)
    rig.ask("b")
    assert rig.state("b") == "starting"


def test_a_load_corrects_the_ledger_and_measurements_are_remembered() -> None:
    rig = CoreRig({"a": 300, "b": 600})
    rig.actions.working = {"a": 200}
    rig.ask("a")
    assert rig.core.ledger.reserved_bytes == 500
    rig.ask("b")
    assert rig.slot("b").state is SlotState.QUEUED
    rig.bring_up("a", 150)
    assert rig.core.ledger.reserved_by(rig.worker("a").instance) == 350
    assert rig.state("b") == "starting", "there is room now"
    rig.beat("a", memory_bytes=200, peak_memory_bytes=420)
    assert rig.core.ledger.reserved_by(rig.worker("a").instance) == 350
    rig.operate(control.UnloadModel("a"))
    rig.drains("a")
    assert rig.actions.remembered == [("a", 150, 0), ("a", 150, 420)]


def test_a_worker_that_grew_beyond_the_budget_has_an_idle_one_evicted() -> None:
    rig = CoreRig({"a": 500, "b": 400}, up="ab")
    rig.at(3.0)
    rig.beat("a", rows=1, memory_bytes=700)
    assert rig.core.ledger.excess_bytes == 100
    assert rig.state("b") == "draining"
    rig.drains("b")
    assert rig.core.ledger.excess_bytes < 0
    assert rig.core.swaps_total == 0


def test_groups_swap() -> None:
    rig = CoreRig(
        {"a": 100, "b": 100}, groups=[{"name": "g", "models": ["a", "b"], "swap": True}], up="a"
    )
    rig.ask("b")
    detail = "by its group's rules it can't be loaded together with a; number 1 in the queue"
    assert rig.actions.details["model.queued"] == detail
    rig.at(20.0)
    assert rig.state("a") == "draining"
    rig.said("a", control.Drained)
    assert rig.slot("b").state is SlotState.QUEUED
    rig.exits("a")
    assert rig.state("b") == "starting"


# Operators.


def test_an_operators_load_waits_for_ever_and_may_evict() -> None:
    rig = CoreRig(TWO, up="a")
    rig.beat("a", rows=1)
    done = rig.operate(control.LoadModel("b"))
    assert done == control.Done("b waits for memory, number 1 in the queue", model_id="b")
    rig.at(29.0)
    rig.beat("a", rows=1)
    assert rig.slot("b").state is SlotState.QUEUED
    rig.at(30.0)
    assert rig.sent("a")[-1] == control.Drain(False)
    rig.operate(control.UnloadModel("b"))
    assert rig.slot("b").state is SlotState.COLD
    rig.drains("a")
    assert rig.slot("b").state is SlotState.COLD


def test_a_reset_shows_the_state_that_the_status_shows() -> None:
    rig = CoreRig({"a": 100}, up="a")
    assert rig.operate(control.ResetModel("a")).message == "a is reset: it is ready"


def test_a_held_model_takes_no_request_until_it_is_loaded_or_reset() -> None:
    rig = CoreRig({"a": 100}, up="a")
    done = rig.operate(control.DrainModel("a"))
    assert done.pid == rig.worker("a").pid
    assert rig.sent("a")[-1] == control.Drain(False)
    assert rig.answer(rig.ask("a")).code is ErrorCode.MODEL_DRAINED
    rig.drains("a")
    assert rig.slot("a").state is SlotState.HELD
    answer = rig.answer(rig.ask("a"))
    assert (answer.code, answer.retry_after_s) == (ErrorCode.MODEL_DRAINED, 300)
    rig.operate(control.UnloadModel("a"))
    assert rig.slot("a").state is SlotState.HELD
    rig.operate(control.ResetModel("a"))
    assert rig.slot("a").state is SlotState.COLD
    rig.operate(control.DrainModel("a"))
    assert rig.slot("a").state is SlotState.HELD
    rig.operate(control.RestartModel("a"))
    assert rig.state("a") == "starting"
    assert [model for model, _ in rig.noted("model.drained")] == ["a", "a"]


def test_who_waits_for_a_model_that_is_held_gets_an_error() -> None:
    rig = CoreRig({"a": 100})
    asked = rig.ask("a")
    rig.operate(control.DrainModel("a"))
    assert rig.answer(asked).code is ErrorCode.MODEL_DRAINED


def test_reset_leaves_quarantine_and_waits_for_a_request() -> None:
    rig = CoreRig({"a": 100}, restart={"max_failures": 0})
    rig.ask("a")
    rig.exits("a", 1)
    assert rig.slot("a").state is SlotState.QUARANTINED
    assert [model for model, _ in rig.noted("model.quarantined")] == ["a"]
    rig.operate(control.ResetModel("a"))
    assert (rig.slot("a").state, rig.slot("a").problem) == (SlotState.COLD, None)
    rig.ask("a")
    assert rig.state("a") == "starting"


def test_reset_in_a_backoff_continues_for_the_operator_who_waits() -> None:
    rig = CoreRig({"a": 100})
    rig.operate(control.LoadModel("a"))
    rig.exits("a", 1)
    assert rig.slot("a").state is SlotState.BACKOFF
    rig.operate(control.ResetModel("a"))
    assert rig.state("a") == "starting"


def test_a_load_that_can_never_work_is_quarantined_at_once() -> None:
    rig = CoreRig({"a": 100})
    asked = rig.ask("a")
    rig.said("a", control.WorkerHello, "a", 1, WorkerState.STARTING)
    rig.said("a", control.LoadFailed, ErrorCode.MODEL_SOURCE_INVALID, "no such tensor", True)
    rig.exits("a", 1)
    assert rig.slot("a").state is SlotState.QUARANTINED
    assert rig.answer(asked).message == "no such tensor"
    assert "can't be loaded as it is: no such tensor" in (rig.slot("a").problem or "")


# The configuration.


def change(rig: CoreRig, needs: dict[str, int], **settings: object) -> None:
    rig.actions.needs = needs
    new = make_config(needs, **settings)  # type: ignore[arg-type]
    rig.settings.apply(new, rig.now_s)


def test_a_changed_configuration_touches_what_it_changes_alone() -> None:
    rig = CoreRig({"a": 100, "b": 100, "c": 100}, up="abc")
    rig.now_s = 1.0
    settings = {
        "a": {"keep_alive": 60, "aliases": ["other"]},
        "b": {"context_length": 99},
        "d": {"preload": True},
        "e": {"preload": False},
    }
    change(rig, {"e": 100, "a": 100, "b": 100, "d": 100}, models=settings)
    assert rig.state("a") == "ready"
    assert rig.core.slot("other") is rig.slot("a")
    assert rig.core.status(1.0)[1].expires_in_s == 59.0
    assert (rig.state("b"), rig.state("c")) == ("draining", "draining")
    assert (rig.state("d"), rig.state("e")) == ("starting", "cold")
    assert [view.model_id for view in rig.core.snapshot(1.0).models] == list("eabd")
    assert rig.answer(rig.ask("c")).code is ErrorCode.MODEL_NOT_FOUND
    rig.drains("b")
    assert rig.state("b") == "starting"
    assert rig.slot("b").model.context_length == 99
    rig.drains("c")
    assert "c" not in rig.core.slots
    assert [line.model for line in rig.core.status(1.0)] == list("eabd")


def test_what_waits_for_a_model_that_is_removed_gets_an_error() -> None:
    rig = CoreRig(TWO, up="a")
    rig.beat("a", rows=1)
    asked = rig.ask("b")
    change(rig, {"a": 700})
    assert rig.answer(asked).code is ErrorCode.MODEL_UNLOADED
    assert list(rig.core.slots) == ["a"]


def test_a_model_that_comes_back_while_its_worker_goes_keeps_its_slot() -> None:
    rig = CoreRig({"a": 100}, up="a")
    change(rig, {"b": 100})
    change(rig, {"a": 100, "b": 100})
    assert rig.state("a") == "draining"
    rig.drains("a")
    assert rig.state("a") == "starting"


def test_a_quarantined_model_is_forgiven_by_another_configuration() -> None:
    rig = CoreRig({"a": 100}, restart={"max_failures": 0})
    rig.ask("a")
    rig.exits("a", 1)
    change(rig, {"a": 100}, models={"a": {"context_length": 99}}, restart={"max_failures": 0})
    assert rig.slot("a").state is SlotState.COLD


def test_what_waits_is_planned_again_for_another_budget() -> None:
    rig = CoreRig({"a": 700, "b": 400}, up="a")
    rig.beat("a", rows=1)
    rig.ask("b")
    assert rig.slot("b").state is SlotState.QUEUED
    rig.core.ledger.budget_bytes = 1100
    change(rig, {"a": 700, "b": 350}, memory={"budget_bytes": 1100})
    assert rig.state("b") == "starting"
    assert rig.core.ledger.reserved_by(rig.worker("b").instance) == 350


def test_the_next_supervisor_finds_what_was_reserved_after_the_load() -> None:
    """The plan's bytes are not it: a model that took less has room for others since, and one that
    took more has not."""
    rig = CoreRig({"a": 400})
    rig.actions.working["a"] = 100
    rig.ask("a")
    rig.bring_up("a", memory_bytes=300)
    instance = rig.worker("a").instance
    assert rig.core.ledger.reserved_by(instance) == 400
    assert rig.actions.kept == {instance: 400}


def test_nothing_is_adopted_while_lmx_ends() -> None:
    rig = CoreRig({"a": 100})
    rig.core.stop_workers(0.0, at_once=False)
    assert not rig.core.adopt("0ld0", "a", 4242, 90, 1.0), "nobody would end it any more"
    assert not rig.core.workers


def test_an_adopted_worker_ends_a_backoff_and_a_wait() -> None:
    rig = CoreRig({"a": 100})
    asked = rig.ask("a")
    rig.exits("a", 1)
    assert rig.slot("a").state is SlotState.BACKOFF
    assert rig.core.adopt("0ld0", "a", 4242, 90, 1.0)
    rig.at(59.0)
    assert rig.state("a") == "starting"
    rig.said("a", control.WorkerHello, "a", 4242, WorkerState.READY, 95)
    assert rig.answer(asked) == control.Acquired("a", "0ld0")
    assert rig.slot("a").past.loads_total == 0, "it was another supervisor's load"


def test_what_waits_does_not_start_while_lmx_ends_and_nobody_is_evicted() -> None:
    rig = CoreRig({"a": 700, "b": 400, "c": 100}, memory={"keep_alive": 20}, up="ac")
    asked = rig.ask("b", wait_s=50)
    rig.core.begin_stopping()
    rig.at(40.0)
    assert (rig.state("a"), rig.state("c")) == ("ready", "ready")
    rig.exits("a", -9)
    assert rig.slot("b").state is SlotState.QUEUED
    rig.core.stop_workers(41.0, at_once=False)
    assert rig.answer(asked).code is ErrorCode.SHUTTING_DOWN
    assert rig.actions.spawned == ["a", "c"]


def test_what_nobody_waits_for_any_more_drains_nobody() -> None:
    rig = CoreRig({"a": 700, "b": 400}, memory={"fair_wait_s": 30}, up="a")
    rig.beat("a", rows=1)
    rig.ask("b")
    rig.core.withdraw("b", b"another router", rig.now_s)
    assert rig.slot("b").state is SlotState.QUEUED
    rig.core.withdraw("b", b"router", rig.now_s)
    assert (rig.slot("b").state, rig.slot("b").life.wanted) == (SlotState.COLD, False)
    assert rig.noted("model.stays_cold") == [("b", {})]
    rig.at(100.0)
    assert control.Drain(False) not in rig.sent("a")
    asked = rig.ask("b", waited_s=31.0)
    assert rig.slot("b").state is SlotState.QUEUED
    assert control.Drain(False) in rig.sent("a")
    assert rig.answer(asked) is None
    rig.drains("a")
    rig.core.withdraw("b", b"router", rig.now_s)
    assert rig.state("b") == "starting", "a load that has begun goes on"
    rig.core.withdraw("gone", b"router", rig.now_s)


def test_what_an_operator_waits_for_continues_without_requests() -> None:
    rig = CoreRig(TWO, up="a")
    rig.operate(control.LoadModel("b"))
    rig.ask("b")
    rig.core.withdraw("b", b"router", rig.now_s)
    assert rig.slot("b").state is SlotState.QUEUED


def test_events_show_who_waits_before_who_goes_and_that_a_busy_one_stays() -> None:
    rig = CoreRig({"a": 500, "c": 600}, up="a")
    rig.at(20.0)
    rig.ask("c")
    rig.said("a", control.DrainRefused, 1)
    names = [name for name, _, _ in rig.actions.notes if name.startswith("model.")]
    assert names == ["model.queued", "model.evicting", "model.stays"]
    assert rig.noted("model.stays") == [("a", {"for_model": "c"})]
    assert rig.actions.details["model.stays"] == "it was busy: c waits on"


def test_a_pin_that_could_not_be_written_is_reported() -> None:
    rig = CoreRig(TWO)
    assert rig.operate(control.PinModel("a", True)) == control.Done("a is pinned")
    rig.actions.pins_write_failure = "/x/pins.json: No space left on device"
    assert rig.operate(control.PinModel("b", True)) == control.Done(
        "b is pinned, but it could not be written to /x/pins.json: No space left on device: the "
        "pin is gone after a restart of the supervisor"
    )


def test_a_worker_that_outlives_sigkill_keeps_nobody_waiting_for_its_memory() -> None:
    rig = CoreRig({"a": 600, "b": 300, "c": 600}, 1000, up="a")
    rig.at(20.0)
    rig.up("b")
    rig.operate(control.KillModel("a"))
    rig.at(40.0)
    requester = rig.ask("c")
    assert rig.state("c") == "queued"
    assert rig.state("b") == "ready", "a's bytes are on their way, as far as anybody knows"
    waits = rig.ask("a")
    for second in range(41, 60):
        rig.at(float(second))
    (noted,) = rig.noted("worker.stuck")
    assert noted[0] == "a"
    assert noted[1]["reserved_bytes"] == 600
    assert "SIGKILL" in str(rig.slot("a").problem)
    # Nobody goes in vain: what b has would not be enough beside what a still holds.
    assert (rig.state("b"), rig.answer(requester)) == ("ready", None)
    small = rig.ask("b")
    assert isinstance(rig.answer(small), control.Acquired)
    # Whoever waited for the model itself is answered with the reason, as is whoever asks now.
    for refused in (rig.answer(waits), rig.answer(rig.ask("a"))):
        assert isinstance(refused, control.Denied)
        assert refused.message.startswith("the worker of a is stuck: not even SIGKILL ends it")
    rig.exits("a", -9)
    assert rig.state("c") == "starting"


def test_a_worker_that_goes_by_itself_takes_no_more_requests_and_comes_back() -> None:
    """Its supervisor was gone for longer than the orphan grace, and is back."""
    rig = CoreRig({"a": 100}, 1000, up="a")
    instance = rig.worker("a").instance
    beat = control.WorkerBeat(
        instance, WorkerState.DRAINING, 1, 0, 0.0, WorkerFigures(memory_bytes=100)
    )
    rig.core.worker_reported(instance, beat, 1.0)
    assert rig.state("a") == "draining"
    requester = rig.ask("a")
    rig.at(500.0)
    assert (rig.state("a"), rig.answer(requester)) == ("draining", None)
    rig.drains("a")
    assert rig.state("a") == "starting"


def test_a_model_whose_workers_take_their_memory_with_them_is_not_started_a_third_time() -> None:
    rig = CoreRig({"a": 100, "b": 100})
    rig.ask("a")
    for after in ("starting", "quarantined"):
        rig.bring_up("a")
        instance = rig.worker("a").instance
        rig.exits("a", -9, settled=False)
        assert rig.state("a") == "backoff"
        memory = ReturnedMemory(returned_bytes=40, missing_bytes=60, took_s=5.0, detail="")
        rig.core.memory_settled(instance, "a", 60, rig.now_s, memory)
        # That some of it comes back later is not another loss.
        rig.core.memory_settled(instance, "a", 50, rig.now_s)
        rig.at(rig.now_s + 100.0)
        assert rig.state("a") == after
    assert rig.core.ledger.missing_bytes == 100
    denied = rig.answer(rig.ask("a"))
    assert denied.code is ErrorCode.MODEL_QUARANTINED
    assert "Restart the machine" in denied.message
    rig.up("b")
    rig.operate(control.RestartModel("a"))
    assert rig.state("a") == "starting"


def test_a_loss_that_is_known_after_the_end_of_the_next_worker_is_counted() -> None:
    rig = CoreRig({"a": 100}, 1000)
    rig.ask("a")
    instances = []
    for _ in range(2):
        rig.bring_up("a")
        instances.append(rig.worker("a").instance)
        rig.exits("a", -9, settled=False)
        rig.at(rig.now_s + 1.0)
    lost = ReturnedMemory(returned_bytes=40, missing_bytes=60, took_s=5.0, detail="lost")
    rig.core.memory_settled(instances[0], "a", 60, rig.now_s, lost)
    last_exit = rig.slot("a").past.last_exit
    assert last_exit is not None
    assert last_exit.memory is None, "it is about the other worker"
    rig.core.memory_settled(instances[1], "a", 60, rig.now_s, lost)
    assert rig.slot("a").life.failures.losses == 2
    rig.core.memory_settled(instances[0], "a", 0, rig.now_s)
    assert rig.slot("a").life.failures.losses == 2, "the last one's is still missing"
    rig.core.memory_settled(instances[1], "a", 0, rig.now_s)
    assert rig.slot("a").life.failures.losses == 0
