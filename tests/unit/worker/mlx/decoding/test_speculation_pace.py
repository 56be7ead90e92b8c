"""Whether drafting goes on, by what steps took."""

import pytest

from lmx.worker.mlx.decoding.speculation import Experience, SpeculationPace

PLAIN_S = 0.010


def measured(rows: int = 1) -> Experience:
    experience = Experience()
    experience.measured(rows, PLAIN_S)
    experience.measured(rows, PLAIN_S)
    return experience


def steps_tried(pace: SpeculationPace, steps: int, accepted: int, took_s: float) -> int:
    """Run so many steps in which ``accepted`` drafts are right; return how many drafted."""
    tried = 0
    for _ in range(steps):
        drafted = pace.tokens(1)
        if drafted:
            pace.tried(1, drafted, min(accepted, drafted), took_s)
            tried += 1
        else:
            pace.rested()
            pace._experience.measured(1, PLAIN_S)
    return tried


def test_plain_steps_are_measured_first() -> None:
    experience = Experience()
    pace = SpeculationPace(experience, 4)
    assert pace.tokens(1) == 0
    experience.measured(1, PLAIN_S)
    assert pace.tokens(1) == 0
    experience.measured(1, PLAIN_S)
    assert pace.tokens(1) == 4
    assert pace.tokens(2) == 0


@pytest.mark.parametrize(
    ("accepted", "took_s", "goes_on"),
    [
        (4, 4 * PLAIN_S, True),
        (4, 6 * PLAIN_S, False),
        (1, 1.5 * PLAIN_S, True),
        (1, 2.5 * PLAIN_S, False),
        (0, 1.2 * PLAIN_S, False),
        (0, 1.0 * PLAIN_S, True),
    ],
)
def test_it_goes_on_while_it_pays(accepted: int, took_s: float, goes_on: bool) -> None:
    pace = SpeculationPace(measured(), 4)
    assert (steps_tried(pace, 200, accepted, took_s) == 200) == goes_on


def test_what_never_pays_is_hardly_tried() -> None:
    pace = SpeculationPace(measured(), 4)
    assert steps_tried(pace, 2000, 0, 3 * PLAIN_S) < 60


def test_what_is_far_too_slow_is_tried_once() -> None:
    pace = SpeculationPace(measured(), 4)
    assert steps_tried(pace, 16, 0, 2.1 * PLAIN_S) == 1
    pace = SpeculationPace(measured(), 4)
    assert steps_tried(pace, 16, 0, 1.9 * PLAIN_S) == 4


def test_what_pays_again_is_found_again() -> None:
    pace = SpeculationPace(measured(), 4)
    steps_tried(pace, 2000, 0, 3 * PLAIN_S)
    assert steps_tried(pace, 1000, 4, 2 * PLAIN_S) > 700


def test_tokens_that_were_foreseen_end_a_pause() -> None:
    pace = SpeculationPace(measured(), 4)
    needed: list[int] = []
    for _ in range(3):
        while not pace.pausing:
            pace.tried(1, 4, 0, 3 * PLAIN_S)
        assert pace.tokens(1) == 0
        for tokens in range(1000):
            pace.predicted(tokens)
            if not pace.pausing:
                needed.append(tokens)
                break
        assert pace.tokens(1) > 0
    assert needed == [8, 16, 32]


def test_as_many_are_guessed_as_are_right_and_one_more() -> None:
    pace = SpeculationPace(measured(), 16)
    steps_tried(pace, 40, 2, PLAIN_S)
    assert pace.tokens(1) == 3
    steps_tried(pace, 40, 16, PLAIN_S)
    assert pace.tokens(1) == 16
    steps_tried(pace, 40, 0, PLAIN_S)
    assert pace.tokens(1) == 1


def test_plain_steps_are_measured_again_after_a_while() -> None:
    pace = SpeculationPace(measured(), 4)
    assert steps_tried(pace, 300, 4, PLAIN_S) == 298


def test_a_step_of_unknown_length_counts_only_what_was_right() -> None:
    pace = SpeculationPace(measured(), 8)
    for _ in range(40):
        pace.tried(1, pace.tokens(1), 0, None)
    assert not pace.pausing
    assert pace.tokens(1) == 1


def test_a_row_learns_from_those_before_it() -> None:
    experience = measured()
    for _ in range(8):
        steps_tried(SpeculationPace(experience, 4), 10, 0, 3 * PLAIN_S)
    discouraged = SpeculationPace(experience, 4)
    assert steps_tried(discouraged, 256, 0, 3 * PLAIN_S) == 0
    assert steps_tried(discouraged, 1, 4, PLAIN_S) == 1
    steps_tried(discouraged, 16, 4, PLAIN_S)
    assert SpeculationPace(experience, 4).tokens(1) == 4
