"""When each word of a window was said, from the model's attention to the sound. Pure.

Follows OpenAI's Whisper (``timing.py``): a path of least cost through a matrix of tokens and times
tells when each token was said; words are groups of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lmx.worker.mlx.speech.rules import STAMPS_PER_SECOND

_SENTENCE_ENDS: Final = frozenset(".。!！?？")  # noqa: RUF001
_BEFORE_A_WORD: Final = frozenset("\"'“¿([{-")
_BEHIND_A_WORD: Final = frozenset("\"'.。,，!！?？:：”)]}、")  # noqa: RUF001
_WITHOUT_SPACES: Final = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_NO_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"

_USUAL_WORD_S: Final = 0.7
"""The median length of a window's words counts as at most this."""
_LONGEST_WORDS: Final = 2
"""At the beginning and the end of a sentence, a word is at most this many times the median:
silence there is no part of it."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word, and when it was said, in seconds from the window's beginning."""

    text: str
    """With the space before it, and the punctuation around it."""
    tokens: int
    """How many tokens it has."""
    start_s: float
    end_s: float


def split_words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], language: str
) -> list[tuple[str, int]]:
    """Return the words of a text with the number of their tokens.

    Languages without spaces are split between characters.
    """
    words: list[tuple[str, int]] = []
    for text, size in _whole_characters(tokens, decode):
        begins = text.startswith(" ") or language in _WITHOUT_SPACES or not words
        if begins or text.strip() in _BEHIND_A_WORD | _BEFORE_A_WORD:
            words.append((text, size))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + size)
    return words


def _whole_characters(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[tuple[str, int]]:
    """Return the tokens' text, cut where characters are whole, with the number of tokens of each
    piece. Bytes that are no character stay with what follows them."""
    pieces: list[tuple[str, int]] = []
    begin = 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begin:end])
        if _NO_CHARACTER not in text or end == len(tokens):
            pieces.append((text, end - begin))
            begin = end
    return pieces


def time_words(words: Sequence[tuple[str, int]], matrix: np.ndarray[Any, Any]) -> list[TimedWord]:
    """Return when each word was said.

    ``matrix`` has a row for each token, and one more for the end, and a column for each 20 ms; it
    is the larger, the more the token belongs to the time.
    """
    if not words:
        return []
    rows, columns = warp(-matrix)
    first = np.concatenate([[True], np.diff(rows) > 0])
    times_s = columns[first] / STAMPS_PER_SECOND
    bounds = np.cumsum([0, *(size for _, size in words)])
    return [
        TimedWord(text, size, float(times_s[begin]), float(times_s[end]))
        for (text, size), begin, end in zip(words, bounds[:-1], bounds[1:], strict=True)
    ]


def tidy(words: Sequence[TimedWord]) -> tuple[list[TimedWord], float]:
    """Return the words with their punctuation, none of them too long at the end of a sentence;
    and their median length in seconds."""
    lengths = [word.end_s - word.start_s for word in words if word.end_s > word.start_s]
    median_s = min(_USUAL_WORD_S, float(np.median(lengths)) if lengths else 0.0)
    shortened = list(words)
    if lengths:
        longest_s = median_s * _LONGEST_WORDS
        for index in range(1, len(shortened)):
            word, before = shortened[index], shortened[index - 1]
            if word.end_s - word.start_s <= longest_s:
                continue
            if word.text in _SENTENCE_ENDS:
                shortened[index] = replace(word, end_s=word.start_s + longest_s)
            elif before.text in _SENTENCE_ENDS:
                shortened[index] = replace(word, start_s=word.end_s - longest_s)
    return _join_behind(_join_before(shortened)), median_s


def fit_segment(
    words: Sequence[TimedWord], start_s: float, end_s: float, median_s: float, spoken_s: float
) -> list[TimedWord]:
    """Return a segment's words within the times that its stamps give, where these are better: a
    word after a pause, or the last one, must not stretch over silence.

    All times are of the same clock; ``spoken_s`` is when the last word before the segment ended.
    """
    fitted = list(words)
    if not fitted:
        return fitted
    longest_s = median_s * _LONGEST_WORDS
    first = fitted[0]
    after_pause = first.end_s - spoken_s > median_s * 4
    if after_pause and first.end_s - first.start_s > longest_s:
        first = fitted[0] = replace(first, start_s=max(0.0, first.end_s - longest_s))
    if first.start_s + 0.5 < start_s < first.end_s:
        fitted[0] = replace(first, start_s=max(0.0, min(first.end_s - median_s, start_s)))
    last = fitted[-1]
    if last.start_s < end_s < last.end_s - 0.5:
        fitted[-1] = replace(last, end_s=max(last.start_s + median_s, end_s))
    return fitted


def _join_before(words: Sequence[TimedWord]) -> list[TimedWord]:
    joined: list[TimedWord] = []
    for word in reversed(words):
        opens = word.text.startswith(" ") and word.text.strip() in _BEFORE_A_WORD
        if opens and joined:
            joined[-1] = _together(word, joined[-1], joined[-1])
        else:
            joined.append(word)
    return joined[::-1]


def _join_behind(words: Sequence[TimedWord]) -> list[TimedWord]:
    joined: list[TimedWord] = []
    for word in words:
        if joined and not joined[-1].text.endswith(" ") and word.text in _BEHIND_A_WORD:
            joined[-1] = _together(joined[-1], word, joined[-1])
        else:
            joined.append(word)
    return joined


def _together(first: TimedWord, second: TimedWord, timed: TimedWord) -> TimedWord:
    return TimedWord(
        first.text + second.text, first.tokens + second.tokens, timed.start_s, timed.end_s
    )


_DIAGONAL, _UP, _LEFT = 0, 1, 2


def warp(
    costs: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the path of least cost from the first cell to the last, as rows and columns (dynamic
    time warping).

    It is computed by diagonals, each of which is one operation: 200 tokens and 1500 times take
    0.1 s, where a loop over the cells would take seconds and hold the interpreter's lock.
    """
    height, width = costs.shape
    # Cell (i, j) of a table of totals is at [i + j, i]: so a diagonal is one row.
    totals = np.full((height + width + 1, height + 1), np.inf)
    moves = np.zeros((height + width + 1, height + 1), np.int8)
    totals[0, 0] = 0.0
    for diagonal in range(2, height + width + 1):
        low, high = max(1, diagonal - width), min(height, diagonal - 1)
        at = np.arange(low, high + 1)
        before = np.stack(
            [
                totals[diagonal - 2, low - 1 : high],
                totals[diagonal - 1, low - 1 : high],
                totals[diagonal - 1, low : high + 1],
            ]
        )
        diagonal_is_less = (before[0] < before[1]) & (before[0] < before[2])
        up_is_less = (before[1] < before[0]) & (before[1] < before[2])
        move = np.where(diagonal_is_less, _DIAGONAL, np.where(up_is_less, _UP, _LEFT))
        moves[diagonal, low : high + 1] = move
        totals[diagonal, low : high + 1] = costs[at - 1, diagonal - at - 1] + before[move, at - low]
    return _trace(moves, height, width)


def _trace(
    moves: np.ndarray[Any, Any], height: int, width: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    row, column = height, width
    path: list[tuple[int, int]] = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        move = _LEFT if row == 0 else _UP if column == 0 else moves[row + column, row]
        row -= move != _LEFT
        column -= move != _UP
    rows, columns = np.array(path[::-1]).T
    return rows, columns
