"""Drafting a row's next tokens: what came after its last tokens when they came before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import mlx.core as mx

from lmx.protocol.messages.data import Assist
from lmx.worker.mlx.drafting.token_drafter import Choose, SequenceDrafter

MOST_NGRAM_SIZE: Final = 8
"""A request that asks for more than this gets this."""

INDEXED_TOKENS: Final = 16_384
"""How far back a row is looked up. It bounds the index, at a few MiB for n-grams of up to 3."""


class PromptLookup:
    """One row's prompt and answer so far, indexed by n-grams of ``least_ngram_size`` to
    ``max_ngram_size`` tokens.

    Not concerned with whether drafts turn out right. Adding a token takes a constant time;
    the index forgets n-grams that ended more than ``indexed_tokens`` tokens ago.
    """

    def __init__(
        self,
        max_ngram_size: int,
        indexed_tokens: int = INDEXED_TOKENS,
        *,
        least_ngram_size: int = 1,
    ) -> None:
        self._sizes = range(least_ngram_size, max_ngram_size + 1)
        self._indexed_tokens = indexed_tokens
        self._tokens: list[int] = []
        # Where the text continues after the latest occurrence of an n-gram that has continued: the
        # n-gram at the very end isn't in it yet, or it would find itself.
        self._continued_at: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that follow."""
        begin = len(self._tokens)
        self._tokens += tokens
        end = len(self._tokens)
        for size in self._sizes:
            first = max(begin, end - self._indexed_tokens, size)
            if first >= end:
                break
            parts = (self._tokens[first - size + n : end - size + n] for n in range(size))
            # A long prompt is indexed in one go, between two tokens.
            self._continued_at.update(zip(zip(*parts, strict=True), range(first, end), strict=True))
        # What was never indexed is not there to be forgotten.
        ended = min(begin, end - self._indexed_tokens)
        for old in range(max(0, begin - self._indexed_tokens), ended):
            for ngram in self._ngrams_before(old):
                if self._continued_at.get(ngram) == old:
                    del self._continued_at[ngram]

    def propose(self, num_tokens: int) -> list[int]:
        """Return at most this many tokens; none if the last tokens never came before.

        The longest n-gram decides, and its latest occurrence. Where what followed it reaches
        the end of the text, it is taken to repeat.
        """
        tokens = self._tokens
        for ngram in reversed(list(self._ngrams_before(len(tokens)))):
            start = self._continued_at.get(ngram)
            if start is not None:
                period = len(tokens) - start
                return [tokens[start + offset % period] for offset in range(num_tokens)]
        return []

    def __len__(self) -> int:
        """Return the number of tokens taken."""
        return len(self._tokens)

    def _ngrams_before(self, end: int) -> Iterable[tuple[int, ...]]:
        """Yield the n-grams that end before ``end``, the shortest first."""
        for size in self._sizes:
            if size > end:
                return
            yield tuple(self._tokens[end - size : end])


class LookupDrafter:
    """A ``TokenDrafter`` without a model. ``max_ngram_size`` is
    for requests that name none. ``sure``: shorter runs of tokens are not looked up."""

    observed_tokens = 0
    foresees = True

    def __init__(self, max_ngram_size: int, *, sure: bool = False) -> None:
        self._max_ngram_size = max_ngram_size
        self._sure = sure

    def open_sequence(self, assist: Assist) -> LookupSequence:
        size = min(assist.max_ngram_size or self._max_ngram_size, MOST_NGRAM_SIZE)
        return LookupSequence(PromptLookup(size, least_ngram_size=size if self._sure else 1))


class LookupSequence(SequenceDrafter):
    """A ``SequenceDrafter`` that looks up what came before."""

    def __init__(self, lookup: PromptLookup) -> None:
        self._lookup = lookup

    @property
    def read_tokens(self) -> int:
        return len(self._lookup)

    def read(self, tokens: Sequence[int]) -> None:
        self._lookup.extend(tokens)

    def draft(
        self,
        rest: Sequence[int],
        num_tokens: int,
        choose: Choose,
        confidence_threshold: float | None,
    ) -> mx.array | None:
        """Return what came after the same tokens before. How likely that is, is not known."""
        self._lookup.extend(rest)
        found = self._lookup.propose(num_tokens)
        return mx.array(found) if found else None

    def keep(self, accepted_tokens: int) -> None:
        """Do nothing: drafts are not indexed."""

    def predicted(self, rest: Sequence[int]) -> bool:
        """Index the tokens, and compare the last of them with what would have been drafted."""
        right = bool(rest) and self._lookup.propose(1) == list(rest)
        self._lookup.extend(rest)
        return right
