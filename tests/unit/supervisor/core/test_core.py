"""The core with nothing real around it: loads, waiting requests, failures, adoption, the end."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.states import ExitCause, LoadPhase, SlotState, WorkerState
from lmx.supervisor.decisions.slots.demand import Demand
from tests.support.rigs.core_rig import CoreRig


@pytest.fixture
def rig() -> CoreRig:
    return CoreRig({"a": 100, "b": 100})


def load(rig: CoreRig, now_s: float = 1.0) -> str:
    """An operator loads `a`, which takes 90 bytes; returns the worker's instance."""
    rig.core.operator.load("a", rig.now_s)
    rig.now_s = now_s
    rig.bring_up("a", 90)
    return rig.worker("a").instance


def test_a_cold_model_is_loaded_once_for_all_who_wait(rig: CoreRig) -> None:
    requesters = [rig.ask("a-alias") for _ in range(100)]
    assert rig.actions.spawned == ["a"]
    assert rig.actions.replies == []
    rig.bring_up("a")
    acquired = control.Acquired("a", rig.worker("a").instance)
    assert rig.actions.replies == [(requester, acquired) for requester in requesters]
    assert rig.answer(rig.ask("a")) == acquired


def test_routers_know_the_worker_before_they_are_to_use_it(rig: CoreRig) -> None:
    rig.ask("a")
    rig.core.flush(0.0)
    rig.actions.reported.clear()
    rig.bring_up("a")
    assert [type(message) for message in rig.actions.reported] == [Snapshot, control.Acquired]


def test_a_killed_worker_comes_back_at_once_and_a_crashed_one_after_a_backoff(rig: CoreRig) -> None:
    instance = load(rig)
    rig.operate(control.KillModel("a"))
    assert rig.actions.signals[-1][1] == signal.SIGKILL
    rig.exits("a", -9, settled=False)
    assert rig.actions.spawned == ["a", "a"]
    assert rig.actions.published[-1] == control.WorkerExited(
        instance, "a", ExitCause.KILLED, "an operator killed the model's worker"
    )
    rig.bring_up("a")
    rig.exits("a", -11)
    life = rig.slot("a").life
    assert life.state is SlotState.BACKOFF
    assert life.retry_at_s is not None
    rig.at(life.retry_at_s)
    assert rig.actions.spawned == ["a", "a", "a"]


def test_waiting_requests_outlive_a_crash_and_get_the_error_of_a_failed_load(rig: CoreRig) -> None:
    asked = rig.ask("a")
    rig.exits("a", -11)
    assert rig.answer(asked) is None
    rig.at(100.0)
    rig.said("a", control.WorkerHello, "a", 1, WorkerState.STARTING)
    rig.said("a", control.LoadFailed, ErrorCode.MODEL_LOAD_FAILED, "no tensor lm_head")
    rig.exits("a", 1)
    answer = rig.answer(asked)
    assert (answer.code, answer.message) == (ErrorCode.MODEL_LOAD_FAILED, "no tensor lm_head")


def test_quarantine_denies_until_an_operator_restarts(rig: CoreRig) -> None:
    rig.core.operator.load("a", 0.0)
    for _ in range(4):
        rig.exits("a", 1)
        if (retry_at_s := rig.slot("a").life.retry_at_s) is not None:
            rig.at(retry_at_s)
    assert rig.state("a") == "quarantined"
    answer = rig.answer(rig.ask("a"))
    assert (answer.code, answer.retry_after_s) == (ErrorCode.MODEL_QUARANTINED, 300)
    assert "lmx restart a" in answer.message
    rig.operate(control.UnloadModel("a"))
    assert rig.state("a") == "quarantined", "an unload does not forgive it"
    rig.operate(control.RestartModel("a"))
    assert rig.state("a") == "starting"


def test_a_waiting_request_has_a_deadline(rig: CoreRig) -> None:
    asked = rig.ask("a", wait_s=5)
    rig.at(4.9)
    assert rig.answer(asked) is None
    rig.at(5.0)
    answer = rig.answer(asked)
    assert answer.code is ErrorCode.MODEL_LOADING
    assert answer.message == "a is not ready yet: it is starting, start"
    assert answer.retry_after_s == 5.0, "ten seconds for a first load, of which five are over"
    assert rig.slot("a").worker is not None, "the load goes on, others may want it"


def test_a_fetch_comes_before_the_load(rig: CoreRig) -> None:
    rig.actions.remote.add("a")
    asked = rig.ask("a")
    assert (rig.state("a"), rig.actions.fetching) == ("fetching", {"a"})
    rig.core.fetch_advanced("a", LoadPhase.DOWNLOAD, 0.4, 0.5)
    assert rig.core.snapshot(1.0).models[0].fraction == 0.4
    rig.core.fetch_ended("a", UnavailableError(ErrorCode.DOWNLOAD_FAILED, "no network"), 2.0)
    assert rig.answer(asked).code is ErrorCode.DOWNLOAD_FAILED
    assert (rig.state("a"), rig.slot("a").problem) == ("cold", "no network")
    assert rig.noted("model.not_started") == [("a", {"code": "download_failed"})]


def test_a_fetch_that_the_machine_can_not_start_is_tried_again(rig: CoreRig) -> None:
    """It is no fault of the model's, however often it happens."""
    rig.actions.remote.add("a")
    asked = rig.ask("a")
    for number in range(20):
        assert rig.state("a") == "fetching"
        rig.actions.fetching.discard("a")
        rig.core.fetch_ended("a", BlockingIOError(11, "no more processes"), rig.now_s)
        assert rig.state("a") == "backoff"
        if not number:
            assert rig.answer(asked).message == "can't fetch /a: no more processes"
        rig.at(rig.now_s + 60.0)
    rig.core.fetch_ended("a", Path("/models/a"), rig.now_s)
    assert rig.state("a") == "starting"


def test_an_adopted_worker_is_neither_loaded_again_nor_counted_twice(rig: CoreRig) -> None:
    assert rig.core.adopt("0ld0", "a", 4242, 90, 0.0)
    assert not rig.core.adopt("0ld1", "a", 4243, 90, 0.0), "one worker for a model"
    assert not rig.core.adopt("0ld2", "unknown", 4244, 90, 0.0)
    rig.said("a", control.WorkerHello, "a", 4242, WorkerState.READY, 95, 2048)
    assert rig.actions.spawned == []
    assert rig.core.ledger.reserved_bytes == 95
    worker = rig.slot("a").ready_worker
    assert worker is not None
    assert worker.pid == 4242


def test_what_is_due_while_shutting_down_is_not_started(rig: CoreRig) -> None:
    rig.actions.remote.add("b")
    for name in "ab":
        rig.core.operator.load(name, 0.0)
    rig.exits("a", 1)
    rig.core.begin_stopping()
    rig.at(100.0)
    folder = rig.actions.local_path(rig.slot("a").model)
    rig.core.fetch_ended("b", folder or Path(), 100.0)
    assert rig.actions.spawned == ["a"]


@pytest.mark.parametrize(
    "error",
    [
        OSError("no more processes"),
        TypeError("datetime.date"),
        OverflowError("too big"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
)
def test_a_worker_that_can_not_be_started_gives_its_bytes_back(
    rig: CoreRig, error: Exception
) -> None:
    rig.actions.spawn_error = error
    assert str(error) in rig.operate(control.LoadModel("a")).message
    assert rig.core.ledger.reserved_bytes == 0


def test_an_estimate_that_fails_is_the_models_own_problem(rig: CoreRig) -> None:
    rig.actions.estimate_error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, "no config.json")
    assert rig.answer(rig.ask("a")).code is ErrorCode.MODEL_SOURCE_INVALID
    assert rig.slot("a").problem == "no config.json"


def test_a_bug_in_one_slot_does_not_stop_the_clock_of_the_others(rig: CoreRig) -> None:
    rig.ask("a", wait_s=5)
    other = rig.ask("b", wait_s=5)
    broken = replace(rig.slot("a").life, demand=Demand((None,)))  # type: ignore[arg-type]
    rig.core._store.put(replace(rig.slot("a"), life=broken))
    rig.at(6.0)
    assert [requester for requester, _ in rig.actions.replies] == [other]


def test_as_many_may_wait_as_the_rows_and_the_queue_take() -> None:
    rig = CoreRig({"a": 100}, models={"a": {"max_rows": 2, "max_queue": 3}})
    assert [view.max_waiting for view in rig.core.snapshot(0.0).models] == [5]


def test_shutting_down_refuses_and_ends_everything(rig: CoreRig) -> None:
    load(rig)
    asked = rig.ask("b")
    rig.core.stop_workers(2.0, at_once=False)
    assert rig.answer(asked).code is ErrorCode.SHUTTING_DOWN
    rig.exits("a")
    assert rig.state("a") == "cold"
    assert rig.answer(rig.ask("a")).code is ErrorCode.SHUTTING_DOWN
    assert len(rig.actions.spawned) == 2


def test_an_unknown_model_is_named_with_the_known_ones(rig: CoreRig) -> None:
    with pytest.raises(LmxError, match="known: a, b") as caught:
        rig.core.slot("c")
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def test_a_short_name_is_the_model_of_its_repository() -> None:
    repository = "mlx-community/Qwen3-8B-4bit"
    rig = CoreRig({"a": 100, "b": 100}, models={"b": {"source": repository}})
    assert rig.core.slot("qwen3-8b").model.id == rig.core.slot(repository).model.id == "b"
    rig = CoreRig({"qwen3-8b": 100, "b": 100}, models={"b": {"source": repository}})
    assert rig.core.slot("qwen3-8b").model.id == "qwen3-8b", "a model's own name comes first"
    # What is in the hub's cache is added under the repository's name.
    rig = CoreRig({"a": 100})
    rig.in_cache.add(repository)
    assert rig.operate(control.LoadModel("qwen3-8b", None)).model_id == repository
    assert rig.slot(repository).model.source == repository


def test_a_snapshot_is_published_for_each_change_and_only_then(rig: CoreRig) -> None:
    core = rig.core
    core.flush(0.0)
    assert core.revision == 1
    core.flush(0.1)
    rig.at(0.2)
    core.flush(0.2)
    assert core.revision == 1
    core.operator.load("a", 1.0)
    core.flush(1.0)
    rig.bring_up("a")
    rig.beat("a", rows=3, memory_bytes=95)
    core.flush(3.0)
    revisions = [m.revision for m in rig.actions.published if isinstance(m, Snapshot)]
    assert revisions == list(range(1, core.revision + 1))
    assert core.revision == 3, "cold, starting, ready; a beat is no change"
