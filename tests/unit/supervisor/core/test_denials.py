"""What those who wait in vain are told, and when they are to come back."""

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages import control
from lmx.protocol.states import LoadPhase, WorkerState
from tests.support.rigs.core_rig import CoreRig


def late(rig: CoreRig, name: str, at_s: float) -> control.Denied:
    """The answer to a request that waits until ``at_s`` and no longer."""
    requester = rig.ask(name, wait_s=at_s - rig.now_s)
    rig.at(at_s)
    answer = rig.answer(requester)
    assert isinstance(answer, control.Denied)
    assert answer.code is ErrorCode.MODEL_LOADING
    return answer


def test_a_load_under_way_is_judged_by_how_far_it_is() -> None:
    rig = CoreRig({"a": 100})
    rig.ask("a")
    rig.said("a", control.WorkerHello, "a", 1, WorkerState.STARTING)
    rig.said("a", control.LoadAdvanced, LoadPhase.WEIGHTS, 0.25)
    answer = late(rig, "a", 20.0)
    assert answer.message == "a is not ready yet: it is loading, weights 25%"
    assert answer.retry_after_s == 60.0


def test_earlier_loads_show_how_long_one_takes() -> None:
    rig = CoreRig({"a": 100, "b": 950})
    rig.ask("a")
    rig.now_s = 40.0
    rig.bring_up("a")
    status = rig.core.status(40.0)[0]
    assert (status.loads_total, status.load_s_total) == (1, 40.0)
    rig.exits("a", 0)
    rig.actions.needs["a"] = 900
    rig.now_s = 41.0
    rig.core.tick(200.0, 0.0)
    rig.now_s = 200.0
    answer = late(rig, "a", 210.0)
    assert answer.retry_after_s == 30.0
    rig.ask("b")
    answer = late(rig, "b", 211.0)
    assert "it waits for memory, number 1 in the queue" in answer.message
    assert answer.retry_after_s == 10.0, "no load of it was seen yet"


@pytest.mark.parametrize(("at_s", "left_s"), [(9.9, 1.0), (20.0, 10.0), (50_000.0, 120.0)])
def test_the_time_is_never_absurd(at_s: float, left_s: float) -> None:
    rig = CoreRig({"a": 100}, timing={"start_timeout_s": 80_000})
    assert late(rig, "a", at_s).retry_after_s == left_s


def test_the_snapshot_says_it_too() -> None:
    rig = CoreRig({"a": 100})
    assert rig.core.snapshot(0.0).models[0].retry_after_s is None
    rig.ask("a")
    assert rig.core.snapshot(4.0).models[0].retry_after_s == 6.0
    rig.bring_up("a")
    assert rig.core.snapshot(4.0).models[0].retry_after_s is None
