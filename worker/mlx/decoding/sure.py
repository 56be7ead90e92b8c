"""Tokens that are certain before they are drawn: a row's constraint allows no others.

They are fed in one forward with the token before them. What is returned of them, with which scores,
and what is drawn after them is as if each had been drawn by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmx.worker.mlx.decoding.decode_row import DecodeRow
from lmx.worker.mlx.decoding.rollback import Blocks
from lmx.worker.mlx.model.forward import Forward, PromptCache
from lmx.worker.mlx.sampling.sampler import RowSampler
from lmx.worker.scheduling.length_buckets import max_batchable_tokens

_MOST_FED_TOKENS: Final = 32
"""How many tokens a step feeds at most, for all rows, where some are known in advance. Beyond some
such number, a step takes longer with each token: all rows wait for it."""


class SureTokens:
    """Finds the tokens that must follow those that the rows of a batch feed next. Engine thread."""

    def __init__(self, forward: Forward, sampler: RowSampler, blocks: Blocks) -> None:
        self._forward = forward
        self._sampler = sampler
        self._blocks = blocks

    def possible(self, sequence_ids: Sequence[int]) -> bool:
        """Return whether there may be such tokens, and the caches may take them. Called at every
        step."""
        return (
            self._blocks.right
            and self._sampler.needs_tokens(sequence_ids)
            and _most_tokens(len(sequence_ids)) > 0
            and (self._blocks.apart or len(sequence_ids) == 1)
        )

    def after(self, row: DecodeRow, token: int, rows: Sequence[DecodeRow]) -> list[int]:
        """Return what must follow ``token``, which a row of these feeds next and the sampler
        knows."""
        most_tokens = min(_most_tokens(len(rows)), room_tokens(row, rows))
        vocabulary = self._forward.vocabulary_size
        return self._sampler.foresee(row.sequence_id, token, vocabulary, most_tokens)

    def pays(self, sure: Sequence[Sequence[int]], prompt_cache: PromptCache) -> bool:
        """Return whether a step pays that makes so many more tokens of each row.

        Where they are not the same number for all rows, the caches of the rows are shifted apart:
        they are read and written once more. The tokens must come cheaper than by plain steps,
        which read the weights and the caches once.
        """
        gained = sum(map(len, sure))
        if not gained or len(set(map(len, sure))) == 1:
            return bool(gained)
        kv_bytes = sum(layer.nbytes for layer in prompt_cache)
        step_bytes = self._forward.weight_bytes + kv_bytes
        return bool(gained * step_bytes >= 2 * len(sure) * kv_bytes)


def _most_tokens(rows: int) -> int:
    return _MOST_FED_TOKENS // rows - 1


def room_tokens(row: DecodeRow, rows: Sequence[DecodeRow]) -> int:
    """Return how many tokens a row may get in a step besides the one that it feeds next: no more
    than it wants, and so few that the rows of the batch stay alike in length."""
    tokens = len(row.tokens) + (not row.known)
    left_tokens = row.left_tokens - (not row.known)
    if len(rows) == 1:
        return left_tokens
    shortest_tokens = min(len(each.tokens) for each in rows)
    return min(left_tokens, max_batchable_tokens(shortest_tokens) - tokens)
