"""Models whose files are still being read, and what follows once they have been."""

from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control
from lmx.protocol.states import ModelKind, SlotState, WorkerState
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.memory.inspection import Inspection, Question
from tests.support.fakes.fake_actions import FILES
from tests.support.rigs.core_rig import CoreRig


def reading(*names: str) -> CoreRig:
    """Files of these are not read at once."""
    rig = CoreRig({"a": 100, "b": 100})
    rig.actions.unread.update(names)
    return rig


def answer(rig: CoreRig, name: str, problem: str | None = None, *, by_host: bool = False) -> None:
    question = question_of(rig.slot(name).model, f"/models/{name}")
    files, kind = (None, None) if problem else (FILES, ModelKind.CHAT)
    found = Inspection(
        question, f"/models/{name}", kind=kind, files=files, problem=problem, by_host=by_host
    )
    rig.core.inspected(name, found, rig.now_s)


def test_a_model_waits_for_no_memory_until_it_was_read() -> None:
    rig = reading("a")
    requester = rig.ask("a")
    rig.at(1.0)
    assert (rig.slot("a").state, rig.slot("a").plan) == (SlotState.QUEUED, None)
    assert rig.core.positions(1.0) == {}
    rig.ask("b")
    assert rig.actions.spawned == ["b"], "others do not wait for it"
    rig.core.status(1.0)
    answer(rig, "a")
    assert rig.actions.spawned == ["b", "a"]
    rig.bring_up("a")
    assert isinstance(rig.answer(requester), control.Acquired)


def test_what_can_not_be_read_is_reported_to_who_waits_and_in_the_status() -> None:
    rig = reading("a")
    requester = rig.ask("a")
    problem = "/models/a/config.json is not JSON"
    rig.actions.estimate_error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, problem)
    answer(rig, "a", problem)
    denied = rig.answer(requester)
    assert (denied.code, denied.message) == (ErrorCode.MODEL_SOURCE_INVALID, problem)
    assert rig.slot("a").problem == problem


def test_a_model_whose_reader_was_lost_is_read_again() -> None:
    rig = reading("a")
    requester = rig.ask("a")
    rig.actions.estimate_error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, "its reader ended")
    answer(rig, "a", "its reader ended", by_host=True)
    assert rig.answer(requester).message == "its reader ended"
    assert rig.slot("a").state is SlotState.BACKOFF
    rig.actions.estimate_error = None
    rig.at(200.0)
    assert rig.slot("a").state is SlotState.QUEUED
    answer(rig, "a")
    assert rig.actions.spawned == ["a"]


def test_a_cold_model_has_the_problem_of_its_files_until_they_are_mended() -> None:
    rig = reading()
    answer(rig, "a", problem="it is broken")
    line = next(line for line in rig.core.status(0.0) if line.model == "a")
    assert line.problem == "it is broken"
    answer(rig, "a")
    line = next(line for line in rig.core.status(0.0) if line.model == "a")
    assert line.problem is None


def fetched_before(*unread: str) -> CoreRig:
    """`a` was fetched and loaded once, and is cold."""
    rig = CoreRig({"a": 100})
    rig.actions.remote.add("a")
    rig.ask("a")
    rig.actions.fetching.discard("a")
    rig.core.fetch_ended("a", Path("/models/a"), 0.0)
    rig.bring_up("a")
    rig.operate(control.UnloadModel("a"))
    rig.drains("a")
    rig.actions.unread.update(unread)
    return rig


def test_a_model_whose_fetched_folder_is_gone_is_fetched_again() -> None:
    rig = fetched_before("a")
    requester = rig.ask("a")
    assert rig.slot("a").state is SlotState.QUEUED
    question = question_of(rig.slot("a").model, "/models/a")
    rig.core.inspected("a", Inspection(question, "/models/a", "the folder"), 0.0)
    assert (rig.state("a"), rig.actions.fetching) == ("fetching", {"a"})
    rig.core.fetch_ended("a", Path("/models/b"), 0.0)
    answer(rig, "a")
    rig.bring_up("a")
    assert isinstance(rig.answer(requester), control.Acquired)


def test_a_model_whose_fetched_files_can_not_be_loaded_is_fetched_again_by_its_next_start() -> None:
    rig = fetched_before("a")
    requester = rig.ask("a")
    rig.actions.estimate_error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, "no weights")
    answer(rig, "a", "no weights")
    assert rig.answer(requester).message == "no weights"
    assert rig.actions.fetching == set()
    rig.ask("a")
    assert rig.actions.fetching == {"a"}


def test_what_was_pulled_while_the_model_was_loaded_is_what_it_restarts_with() -> None:
    rig = fetched_before()
    rig.up("a")
    rig.core.files_changed("a")
    rig.operate(control.RestartModel("a"))
    rig.drains("a")
    assert rig.actions.fetching == {"a"}


def test_an_answer_about_another_source_is_none() -> None:
    rig = reading("a")
    rig.ask("a")
    rig.core.inspected("a", Inspection(Question("/else"), "/else", files=FILES), 0.0)
    assert rig.slot("a").plan is None
    rig.core.inspected("gone", Inspection(Question("/else")), 0.0)
    answer(rig, "a")
    assert rig.actions.spawned == ["a"]


def test_one_that_was_unloaded_meanwhile_is_not_loaded() -> None:
    rig = reading("a")
    rig.ask("a")
    rig.core.operator.take("a", events.Unloaded(), 0.0)
    answer(rig, "a")
    assert rig.actions.spawned == []
    assert rig.state("a") == "cold"


def test_an_adopted_worker_without_a_record_holds_what_its_start_would_once_it_was_read() -> None:
    rig = reading("a")
    assert rig.core.adopt("0badcafe", "a", 77, 30, 0.0)
    rig.core.reserve_once_read("0badcafe")
    assert rig.core.ledger.reserved_by("0badcafe") == 30
    assert rig.core.is_unread("0badcafe")
    answer(rig, "a")
    assert not rig.core.is_unread("0badcafe")
    assert rig.core.ledger.reserved_by("0badcafe") == 100
    assert rig.worker("a").state is WorkerState.STARTING


@pytest.mark.parametrize("by_host", [True, False])
def test_a_model_that_can_not_be_read_again_keeps_nobody_waiting(by_host: bool) -> None:
    """It waited for memory, with a plan."""
    rig = CoreRig({"a": 100, "b": 100, "full": 1000}, up=("full",))
    rig.beat("full", rows=1)
    first, second = rig.ask("a"), rig.ask("b")
    rig.at(1.0)
    answer(rig, "a", "it is not there", by_host=by_host)
    rig.exits("full", 1)
    assert ("a" in rig.actions.spawned) is by_host
    if not by_host:
        assert rig.answer(first).code is ErrorCode.MODEL_SOURCE_INVALID
    rig.bring_up("b")
    assert isinstance(rig.answer(second), control.Acquired)
