"""What is said of a model on its way, and how long it still takes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.host.ordinal import ordinal
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import LoadPhase, SlotState, WorkerState
from lmx.router.supervisor.model_queues import LoadPace, progress_text
from tests.support.fakes.fake_peers import cold, ready


def loading(phase: LoadPhase, fraction: float | None) -> ModelView:
    return cold("m", SlotState.OCCUPIED, worker=WorkerState.LOADING, phase=phase, fraction=fraction)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (ready("m", "1"), "m is ready"),
        (cold("m"), "m is about to be loaded"),
        (cold("m", SlotState.QUEUED), "m waits for memory"),
        (cold("m", SlotState.QUEUED, position=2), "m waits for memory, 2nd in line"),
        (
            cold("m", SlotState.FETCHING, phase=LoadPhase.DOWNLOAD, fraction=0.129),
            "m is being fetched: download 12%",
        ),
        (loading(LoadPhase.WEIGHTS, 0.4), "m is loading: weights 40%"),
        (loading(LoadPhase.WARMUP, None), "m is loading: warmup"),
        (cold("m", SlotState.HELD), "m was drained by an operator"),
    ],
)
def test_progress_text(model: ModelView, text: str) -> None:
    assert progress_text(model) == text


@pytest.mark.parametrize("slot", list(SlotState))
@pytest.mark.parametrize("worker", [None, *WorkerState])
def test_every_state_has_words(slot: SlotState, worker: WorkerState | None) -> None:
    assert progress_text(cold("m", slot, worker=worker)).startswith("m ")


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_what_remains_follows_the_pace_of_the_load() -> None:
    pace = LoadPace()
    pace.remaining_s(loading(LoadPhase.WEIGHTS, 0.2), 100.0)
    # 30 % in 15 s, so 50 % in 25 s, and the warmup.
    assert pace.remaining_s(loading(LoadPhase.WEIGHTS, 0.5), 115.0) == pytest.approx(27.0)
    # Another phase has a pace of its own.
    assert pace.remaining_s(loading(LoadPhase.WARMUP, None), 140.0) == pytest.approx(10.0)


def test_a_model_that_waits_for_memory_waits_for_those_before_it() -> None:
    first, third = (cold("m", SlotState.QUEUED, position=place) for place in (1, 3))
    assert LoadPace().remaining_s(third, 0.0) == 3 * LoadPace().remaining_s(first, 0.0)


@pytest.mark.parametrize(
    "model",
    [
        # The supervisor's time has the load in it.
        cold("m", SlotState.BACKOFF, retry_after_s=40.0),
        cold("m", SlotState.QUEUED, position=2, retry_after_s=40.0),
        cold("m", retry_after_s=40.0),
        replace(loading(LoadPhase.WEIGHTS, 0.1), retry_after_s=40.0),
    ],
)
def test_until_a_pace_shows_the_supervisor_knows_best(model: ModelView) -> None:
    assert LoadPace().remaining_s(model, 0.0) == pytest.approx(40.0)


def test_a_pace_that_was_seen_beats_the_supervisors_guess() -> None:
    pace = LoadPace()
    pace.remaining_s(loading(LoadPhase.WEIGHTS, 0.2), 100.0)
    model = replace(loading(LoadPhase.WEIGHTS, 0.5), retry_after_s=60.0)
    assert pace.remaining_s(model, 115.0) == pytest.approx(27.0)


@given(
    slot=st.sampled_from(list(SlotState)),
    steps=st.lists(
        st.tuples(
            st.none() | st.sampled_from(list(LoadPhase)),
            st.none() | st.floats(0, 1),
            st.floats(0, 1000),
        ),
        min_size=1,
    ),
    position=st.none() | st.integers(1, 100),
)
def test_what_remains_is_never_nothing_and_never_absurd(
    slot: SlotState, steps: list[tuple[LoadPhase | None, float | None, float]], position: int | None
) -> None:
    pace, now_s = LoadPace(), 0.0
    for phase, fraction, later_s in steps:
        now_s += later_s
        model = cold("m", slot, phase=phase, fraction=fraction, position=position)
        assert 1.0 <= pace.remaining_s(model, now_s) <= 600.0
