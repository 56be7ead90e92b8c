"""Whether drafting goes on, by what steps took."""

import random
from collections.abc import Callable

import pytest

from lmx.worker.mlx.decoding.speculation_gate import (
    Allowance,
    Experience,
    SpeculationPace,
    why_off,
)

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
def test_it_continues_while_it_pays(accepted: int, took_s: float, goes_on: bool) -> None:
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


def plays(
    chances: Callable[[int], float], seed: int, cost: Callable[[int], float], *, by_signs: bool
) -> tuple[float, float]:
    """Make 3000 tokens in 30 rows as the default does, by counted costs; ``chances`` of a place is
    how likely a draft of its token is right, and ``cost`` that of a step with so many drafts.
    Return the largest cost above what plain steps and the allowance take, and all that was saved.
    Costs are in plain steps."""
    chance = random.Random(seed)
    experience, allowance = Experience(), Allowance()
    worst = spent = 0.0
    place = 0
    for _ in range(30):
        pace = SpeculationPace(experience, 4, by_signs=by_signs)
        streak, end, last_tried = 0, place + 100, True
        while place < end:
            plain_s = experience.average_s(1)
            drafted = pace.tokens(1)
            if plain_s is not None and drafted:
                drafted = min(drafted, allowance.affordable(1, plain_s))
            if not drafted or plain_s is None:
                spent, place = spent + 1, place + 1
                if not last_tried:
                    experience.measured(1, 1.0)
                if plain_s is not None:
                    allowance.stepped_plainly(plain_s)
                right = chance.random() < chances(place)
                streak = streak + 1 if right else 0
                if pace.pausing and by_signs:
                    pace.predicted(streak)
                pace.rested()
                last_tried = False
            else:
                accepted = 0
                while accepted < drafted and chance.random() < chances(place + accepted):
                    accepted += 1
                took = cost(drafted)
                spent, place = spent + took, place + 1 + accepted
                allowance.tried(1, plain_s, drafted, 1 + accepted, took)
                pace.tried(1, drafted, accepted, took if last_tried else None)
                if pace.pausing:
                    streak = 0
                last_tried = True
            worst = max(worst, spent - 1.02 * place)
    return worst, place - spent


CHANCES: dict[str, Callable[[int], float]] = {
    "never": lambda _: 0.0,
    "always": lambda _: 1.0,
    "seldom": lambda _: 0.2,
    "half": lambda _: 0.5,
    "often": lambda _: 0.8,
    "long runs": lambda place: float(place // 40 % 2),
    "runs that end as drafting begins": lambda place: float(place % 6 < 5),
    "at first": lambda place: float(place < 1000),
    "at last": lambda place: float(place >= 2000),
}


@pytest.mark.parametrize("by_signs", [True, False], ids=["by signs", "by time"])
@pytest.mark.parametrize("draft_cost", [0.05, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("name", CHANCES)
def test_what_nobody_asked_for_never_costs_more_than_two_percent(
    name: str, draft_cost: float, by_signs: bool
) -> None:
    for seed in range(5):
        worst, saved = plays(
            CHANCES[name], seed, lambda drafted: 1 + draft_cost * drafted, by_signs=by_signs
        )
        assert worst <= 1e-6
        if name == "always" and draft_cost <= 0.3:
            assert saved > 900, "what pays is used"


def test_a_cost_beyond_the_prediction_is_paid_back_before_there_is_another() -> None:
    worst, _ = plays(lambda _: 0.0, 1, lambda drafted: 3.0 + 2 * drafted, by_signs=False)
    assert worst <= 3.0 + 2 * 4
    allowance = Allowance()
    for _ in range(51):
        allowance.stepped_plainly(PLAIN_S)
    assert allowance.affordable(1, PLAIN_S) == 1
    allowance.tried(1, PLAIN_S, 1, 1, 4 * PLAIN_S)
    assert allowance.is_used_up
    for _ in range(260):
        allowance.stepped_plainly(PLAIN_S)
    assert allowance.affordable(1, PLAIN_S) == 1


@pytest.mark.parametrize("drafted", [1, 0])
def test_a_process_that_stood_still_is_not_paid_back_as_speculation(drafted: int) -> None:
    allowance = Allowance()
    for _ in range(100):
        allowance.stepped_plainly(PLAIN_S)
    allowance.tried(1, PLAIN_S, drafted, 1, 10_000 * PLAIN_S)
    steps = 0
    while allowance.is_used_up:
        allowance.stepped_plainly(PLAIN_S)
        steps += 1
    assert steps <= 1000


def test_what_was_saved_is_kept_up_to_a_limit() -> None:
    allowance = Allowance()
    for _ in range(100):
        allowance.tried(1, PLAIN_S, 4, 5, 2 * PLAIN_S)
    steps = 0
    while allowance.affordable(1, PLAIN_S) >= 4:
        allowance.tried(1, PLAIN_S, 4, 1, 5 * PLAIN_S)
        steps += 1
    assert steps <= 16


def test_a_row_that_goes_by_signs_waits_for_more_of_them_after_each_failure() -> None:
    pace = SpeculationPace(measured(), 4, by_signs=True)
    needed: list[int] = []
    for _ in range(3):
        assert steps_tried(pace, 1000, 4, PLAIN_S) == 0
        tokens = 0
        while pace.pausing:
            tokens += 1
            pace.predicted(tokens)
        needed.append(tokens)
        pace.tried(1, 4, 0, None)
    assert needed == [4, 8, 16]
    pace.predicted(64)
    pace.tried(1, 4, 4, None)
    pace.tried(1, 0, 0, None)  # There was nothing to draft from.
    assert pace.pausing
    pace.predicted(4)
    assert not pace.pausing


@pytest.mark.parametrize(
    ("takes_back", "computes_again", "looked_up", "in_turns", "off"),
    [
        (True, False, True, False, False),
        (True, False, False, False, False),
        (True, True, False, False, False),
        (True, True, True, False, True),
        (True, False, True, True, True),
        (False, False, True, False, True),
        (False, False, False, False, True),
    ],
)
def test_the_default_stays_off_where_it_can_cost(
    takes_back: bool, computes_again: bool, looked_up: bool, in_turns: bool, off: bool
) -> None:
    found = why_off(
        takes_back=takes_back, computes_again=computes_again, looked_up=looked_up, in_turns=in_turns
    )
    assert (found is not None) == off
