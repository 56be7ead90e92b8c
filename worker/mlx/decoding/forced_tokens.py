"""Tokens that are known before they are drawn: a row's constraint allows no others.

They are fed in one forward with the token before them. What is returned of them, with which scores,
and what is drawn after them is as if each had been drawn by itself.
"""

from collections.abc import Sequence
from typing import Final

from lmx.worker.mlx.decoding.rollback import Blocks
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from lmx.worker.mlx.model.forward import Forward, PromptCache
from lmx.worker.mlx.sampling.sampler import BatchSampler
from lmx.worker.scheduling.length_buckets import max_batchable_tokens

_MOST_FED_TOKENS: Final = 32
"""How many tokens a step feeds at most, for all rows, where some are known in advance. Beyond some
such number, a step takes longer with each token: all rows wait for it."""


class ForcedTokens:
    """Finds the tokens that must follow those that the rows of a batch feed next. Engine thread."""

    def __init__(self, forward: Forward, sampler: BatchSampler, blocks: Blocks) -> None:
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

    def after(self, row: DecodeSequence, token: int, rows: Sequence[DecodeSequence]) -> list[int]:
        """Return what must follow ``token``, which a row of these feeds next and the sampler
        knows."""
        most_tokens = min(_most_tokens(len(rows)), token_allowance(row, rows))
        vocabulary = self._forward.vocabulary_size
        return self._sampler.forced_after(row.sequence_id, token, vocabulary, most_tokens)

    def pays(self, forced: Sequence[Sequence[int]], prompt_cache: PromptCache) -> bool:
        """Return whether a step pays that makes these tokens of each row besides.

        Where they are not the same number for all rows, the caches of the rows are shifted apart:
        they are read and written once more. The tokens must come cheaper than by plain steps,
        which read the weights and the caches once.
        """
        gained = sum(map(len, forced))
        if not gained or len(set(map(len, forced))) == 1:
            return bool(gained)
        kv_bytes = sum(layer.nbytes for layer in prompt_cache)
        step_bytes = self._forward.weight_bytes + kv_bytes
        return bool(gained * step_bytes >= 2 * len(forced) * kv_bytes)


def _most_tokens(rows: int) -> int:
    return _MOST_FED_TOKENS // rows - 1


def token_allowance(row: DecodeSequence, rows: Sequence[DecodeSequence]) -> int:
    """Return how many tokens a row may get in a step besides the one that it feeds next: no more
    than it wants, and so few that the rows of the batch stay similar in length."""
    tokens = len(row.tokens) + (not row.known)
    left_tokens = row.left_tokens - (not row.known)
    if len(rows) == 1:
        return left_tokens
    shortest_tokens = min(len(each.tokens) for each in rows)
    return min(left_tokens, max_batchable_tokens(shortest_tokens) - tokens)
