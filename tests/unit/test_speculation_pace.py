"""Whether guessing goes on, by what steps took."""

import pytest

from lmx.worker.speculation_pace import PlainSteps, SpeculationPace

PLAIN_S = 0.010


def measured(rows: int = 1) -> PlainSteps:
    plain = PlainSteps()
    plain.measured(rows, PLAIN_S)
    plain.measured(rows, PLAIN_S)
    return plain


def steps_tried(pace: SpeculationPace, steps: int, accepted: int, took_s: float) -> int:
    """Run so many steps in which ``accepted`` guesses are right; return how many guessed."""
    tried = 0
    for _ in range(steps):
        guessed = pace.tokens(1)
        if guessed:
            pace.tried(1, guessed, min(accepted, guessed), took_s)
            tried += 1
        else:
            pace.rested()
            pace._plain.measured(1, PLAIN_S)
    return tried


def test_plain_steps_are_measured_first() -> None:
    plain = PlainSteps()
    pace = SpeculationPace(plain, 4)
    assert pace.tokens(1) == 0
    plain.measured(1, PLAIN_S)
    assert pace.tokens(1) == 0
    plain.measured(1, PLAIN_S)
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


def test_what_pays_again_is_found_again() -> None:
    pace = SpeculationPace(measured(), 4)
    steps_tried(pace, 2000, 0, 3 * PLAIN_S)
    assert steps_tried(pace, 1000, 4, 2 * PLAIN_S) > 700


def test_a_pause_can_be_ended() -> None:
    pace = SpeculationPace(measured(), 4)
    steps_tried(pace, 5, 0, 3 * PLAIN_S)
    assert pace.pausing
    assert pace.tokens(1) == 0
    pace.wake()
    assert pace.tokens(1) > 0


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
