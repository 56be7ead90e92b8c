"""What prompt lookup drafts, against a search of the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.drafting.prompt_lookup import PromptLookup

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def searched(tokens: Sequence[int], max_ngram_size: int, count: int, reach: int) -> list[int]:
    """The same by brute force: every earlier place, for every length."""
    for size in range(max_ngram_size, 0, -1):
        for start in range(len(tokens) - 1, max(size, len(tokens) - reach) - 1, -1):
            if size <= start and tokens[start - size : start] == tokens[len(tokens) - size :]:
                text = list(tokens)
                for offset in range(count):
                    text.append(text[start + offset])
                return text[len(tokens) :]
    return []


@given(TEXTS, st.integers(1, 5), st.integers(1, 6))
def test_agrees_with_a_search_of_the_whole_text(
    tokens: list[int], max_ngram_size: int, count: int
) -> None:
    lookup = PromptLookup(max_ngram_size)
    for end, token in enumerate(tokens, 1):
        lookup.extend([token])
        assert lookup.propose(count) == searched(tokens[:end], max_ngram_size, count, end)


@given(TEXTS, st.integers(1, 4), st.integers(1, 8))
def test_forgets_what_is_too_far_back(
    tokens: list[int], max_ngram_size: int, indexed_tokens: int
) -> None:
    lookup = PromptLookup(max_ngram_size, indexed_tokens)
    lookup.extend(tokens)
    assert lookup.propose(3) == searched(tokens, max_ngram_size, 3, indexed_tokens)
    assert len(lookup._continued_at) <= indexed_tokens * max_ngram_size


@given(TEXTS, st.data())
def test_it_does_not_matter_how_tokens_arrive(tokens: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    whole, parts = PromptLookup(3), PromptLookup(3)
    whole.extend(tokens)
    parts.extend(tokens[:cut])
    parts.extend(tokens[cut:])
    assert whole.propose(4) == parts.propose(4)


def test_what_was_never_indexed_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other rows wait while a long prompt is indexed."""
    lookup, searched_before = PromptLookup(3, 10), list[int]()

    def search(end: int) -> Sequence[tuple[int, ...]]:
        searched_before.append(end)
        return ()

    monkeypatch.setattr(lookup, "_ngrams_before", search)
    lookup.extend(range(1000))
    assert searched_before == []
    lookup.extend([1, 2])
    assert searched_before == [990, 991]


def test_the_longest_ngram_decides() -> None:
    lookup = PromptLookup(3)
    lookup.extend([1, 2, 3, 9, 7, 3, 8, 1, 2, 3])
    assert lookup.propose(2) == [9, 7]


def test_the_latest_occurrence_decides() -> None:
    lookup = PromptLookup(2)
    lookup.extend([1, 2, 5, 0, 1, 2, 6, 0, 1, 2])
    assert lookup.propose(1) == [6]


def test_a_repetition_is_assumed_to_continue() -> None:
    lookup = PromptLookup(3)
    lookup.extend([4, 5, 4, 5, 4])
    assert lookup.propose(5) == [5, 4, 5, 4, 5]


def test_nothing_is_guessed_after_a_new_token() -> None:
    lookup = PromptLookup(3)
    assert lookup.propose(4) == []
    lookup.extend([1, 2, 3])
    assert lookup.propose(4) == []
