"""Words get the times of the path of least cost, and their punctuation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.speech.words import TimedWord, fit_segment, split_words, tidy, time_words, warp


def plain_warp(costs: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Dynamic time warping as textbooks have it."""
    height, width = costs.shape
    total = np.full((height + 1, width + 1), np.inf)
    move = np.zeros((height + 1, width + 1), int)
    total[0, 0] = 0
    for row in range(1, height + 1):
        for column in range(1, width + 1):
            before = (total[row - 1, column - 1], total[row - 1, column], total[row, column - 1])
            if before[0] < before[1] and before[0] < before[2]:
                move[row, column] = 0
            elif before[1] < before[0] and before[1] < before[2]:
                move[row, column] = 1
            else:
                move[row, column] = 2
            total[row, column] = costs[row - 1, column - 1] + before[move[row, column]]
    path, row, column = [], height, width
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = 2 if row == 0 else 1 if column == 0 else move[row, column]
        row -= int(step != 2)
        column -= int(step != 1)
    return path[::-1]


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 999))
def test_the_path_is_that_of_the_plain_algorithm(height: int, width: int, seed: int) -> None:
    costs = np.random.default_rng(seed).normal(size=(height, width))
    rows, columns = warp(costs)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == plain_warp(costs)


def test_a_word_is_said_where_its_tokens_attend() -> None:
    matrix = np.zeros((4, 200))
    for row, (begin, end) in enumerate([(0, 50), (50, 75), (75, 150), (150, 200)]):
        matrix[row, begin:end] = 1.0
    words = time_words([(" two", 2), (" words", 1)], matrix)
    assert [(one.text, one.tokens) for one in words] == [(" two", 2), (" words", 1)]
    times_s = [time_s for one in words for time_s in (one.start_s, one.end_s)]
    assert times_s == pytest.approx([0.0, 1.5, 1.5, 3.0], abs=0.021)
    assert time_words([], matrix[:1]) == []


TEXTS = {1: " Ever", 2: " tri", 3: "ed", 4: ",", 5: " na", 6: "\ufffd", 7: "ïve", 8: '"', 9: "。"}


def decode(tokens: Sequence[int]) -> str:
    # 6 is the first half of a character, that 7 ends.
    text = "".join(TEXTS[token] for token in tokens)
    return text.replace("\ufffdïve", "ïve")


def test_words_are_split_at_spaces_and_characters_stay_whole() -> None:
    assert split_words([1, 2, 3, 4, 5, 6, 7], decode, "en") == [
        (" Ever", 1),
        (" tried", 2),
        (",", 1),
        (" naïve", 3),
    ]
    assert split_words([3, 7, 3], decode, "ja") == [("ed", 1), ("ïve", 1), ("ed", 1)]
    assert split_words([1, 6], decode, "en") == [(" Ever\ufffd", 2)], "a half is not lost"


def word(text: str, start_s: float, end_s: float) -> TimedWord:
    return TimedWord(text, 1, start_s, end_s)


def test_punctuation_belongs_to_its_word() -> None:
    said = [
        word(' "', 0.0, 0.1), word("Yes", 0.1, 0.4), word(",", 0.4, 0.5), word('"', 0.5, 0.6),
        word(" he", 0.6, 1.0), word(".", 1.0, 1.1),
    ]  # fmt: skip
    words, _ = tidy(said)
    assert [(one.text, one.tokens) for one in words] == [(' "Yes,"', 4), (" he.", 2)]
    assert (words[0].start_s, words[0].end_s) == (0.1, 0.4)


def test_a_word_after_a_sentence_does_not_stretch_over_the_silence() -> None:
    said = [word(" one", 0, 0.3), word(".", 0.3, 0.4), word(" two", 0.4, 3.0), word(" x", 3.0, 3.3)]
    words, median_s = tidy(said)
    assert words[1].start_s == pytest.approx(3.0 - 2 * median_s)


def test_a_segments_stamps_shorten_words_that_reach_into_silence() -> None:
    words = [word(" one", 0.0, 4.0), word(" two", 4.0, 9.0)]
    first, last = fit_segment(words, 3.4, 5.0, 0.5, spoken_s=3.9)
    assert (first.start_s, last.end_s) == (3.4, 5.0)
    after_pause, _ = fit_segment(words, 0.0, 9.0, 0.5, spoken_s=0.0)
    assert after_pause.start_s == pytest.approx(3.0)
    assert fit_segment([], 0, 1, 0.5, 0) == []
