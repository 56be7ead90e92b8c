"""When a window is drawn again, and when it counts as silence."""

import pytest

from lmx.worker.mlx.speech.rules import Attempt, is_poor, is_silence


def attempt(text: str = "a good text", logprob: float = -0.3, no_speech: float = 0.0) -> Attempt:
    return Attempt((1, 2), text, 0.0, logprob, no_speech)


@pytest.mark.parametrize(
    ("made", "poor", "silence"),
    [
        (attempt(), False, False),
        (attempt(logprob=-1.5), True, False),
        (attempt(text="again and " * 50), True, False),
        (attempt(no_speech=0.9), False, False),
        (attempt(logprob=-1.5, no_speech=0.9), False, True),
        (attempt(text="thanks " * 99, logprob=-1.5, no_speech=0.9), False, True),
    ],
)
def test_a_text_that_repeats_itself_or_is_unlikely_is_drawn_again(
    made: Attempt, poor: bool, silence: bool
) -> None:
    assert (is_poor(made), is_silence(made)) == (poor, silence)


def test_nothing_compresses_to_more_than_nothing() -> None:
    assert attempt(text="").compression_ratio == 0.0
