"""Stamps open and close segments, in order."""

from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.speech.rules import Allowed, allowed_next, cut_window

STAMPS, BEGIN = 1501, 1000
"""The tokens below are text."""


def stamp(number: int) -> int:
    return BEGIN + number


def after(*tokens: int) -> Allowed:
    return allowed_next(tokens, BEGIN, STAMPS)


def test_a_window_begins_with_a_stamp_of_its_first_second() -> None:
    assert after() == Allowed(text=False, end=False, first_stamp=0, last_stamp=50)


def test_after_a_segments_first_stamp_comes_text() -> None:
    for opened in ((stamp(0),), (stamp(0), 5, stamp(30), stamp(30))):
        allowed = after(*opened)
        assert (allowed.text, allowed.end) == (True, True)
        assert allowed.last_stamp < allowed.first_stamp


def test_in_a_text_a_later_stamp_may_come() -> None:
    assert after(stamp(7), 5) == Allowed(text=True, end=True, first_stamp=8, last_stamp=1500)
    assert after(stamp(7), 5, stamp(9), stamp(12), 6, 6).first_stamp == 13


def test_after_a_segments_last_stamp_comes_another_or_the_end() -> None:
    allowed = after(stamp(7), 5, stamp(9))
    assert allowed == Allowed(text=False, end=True, first_stamp=9, last_stamp=1500)


@given(st.randoms(use_true_random=False))
def test_whatever_is_drawn_the_segments_are_in_order(random: object) -> None:
    """The network may want anything; within the rules it can't go back in time."""
    draw = random.randrange  # type: ignore[attr-defined]
    tokens: list[int] = []
    for _ in range(60):
        allowed = after(*tokens)
        choices = [draw(0, BEGIN)] if allowed.text else []
        if allowed.first_stamp <= allowed.last_stamp:
            choices.append(stamp(draw(allowed.first_stamp, allowed.last_stamp + 1)))
        if not choices:
            break
        tokens.append(choices[draw(len(choices))])
    cut = cut_window(tokens, BEGIN, 3000)
    ends = [place for one in cut.segments for place in (one.start, one.end)]
    assert ends == sorted(ends)
    assert 0 <= cut.advance_frames <= 3000
