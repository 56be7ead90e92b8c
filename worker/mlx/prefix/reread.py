"""Why a prompt was read again: the recent prompts of a model, and what a new one shares with them.

A prompt is read again where the model computes tokens of it that it had computed for an earlier
prompt. The prefix cache saves a common beginning alone: a date in the first line that changes costs
everything behind it. So what two prompts share is counted wherever it stands, in blocks.

It only explains, and decides nothing that is computed. Pure.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lmx.protocol.states import RereadReason
from lmx.worker.engine.values import RereadPrompt
from lmx.worker.mlx.prefix.tree import Tokens, common_tokens

_LEAST_TOKENS: Final = 256
"""Fewer tokens are read in about the time that a few tokens of the answer take. A model whose
caches can't be cut does not even keep its first state before."""
_LEAST_PART: Final = 10
"""What is less than one part in this many of a prompt is not what made the request slow."""
_BLOCK_TOKENS: Final = 32
"""Must be a power of 2. Other prompts seldom share so many tokens by chance: the frame of a chat
template around a message has fewer."""
_SHOWN_TOKENS: Final = 24
"""The tokens of each of the texts around the place where two prompts part."""
_MOST_PROMPTS: Final = 64
_MOST_TOKENS: Final = 1 << 20
"""Of all remembered prompts together: they take 4 MiB, and their blocks 256 KiB."""

_FACTORS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_SHIFT: Final = np.uint64(29)


class Kept(NamedTuple):
    """How many of a prompt's first tokens the prefix cache has, when they were looked up."""

    usable_tokens: int
    """It has all that the model needs to begin behind them, be it on the disk."""
    stored_tokens: int
    """It has their keys and values, but for a model whose caches can't be cut maybe no state."""


class Overlap(NamedTuple):
    """What a prompt shares with an earlier one."""

    prompt: Tokens
    earlier: Tokens
    answer_at: int
    """Where the answer to the earlier prompt begins."""
    cached_tokens: int
    common_tokens: int
    """How many tokens their common beginning has."""
    again_tokens: int
    """How many tokens were computed for the earlier prompt, and are computed again."""

    def explained(self, kept: Kept | None, *, scored: bool) -> RereadPrompt:
        """Return why they are. ``kept`` None: the model has no prefix cache. ``scored``: the
        prompt's tokens have logprobs, so that all of them must be computed."""
        reason = self._reason(kept, scored=scored)
        expected_tokens = self.cached_tokens + self.again_tokens
        if reason not in _PARTED:
            return RereadPrompt(reason, self.cached_tokens, expected_tokens)
        at = self.common_tokens
        return RereadPrompt(
            reason,
            at,
            expected_tokens,
            self.prompt[max(0, at - _SHOWN_TOKENS) : at].tolist(),
            self.earlier[at : at + _SHOWN_TOKENS].tolist(),
            self.prompt[at : at + _SHOWN_TOKENS].tolist(),
        )

    def _reason(self, kept: Kept | None, *, scored: bool) -> RereadReason:
        lost_tokens = self.common_tokens - self.cached_tokens
        if kept is None:
            return RereadReason.NO_CACHE
        if scored:
            return RereadReason.PROMPT_LOGPROBS
        if 2 * lost_tokens < self.again_tokens:
            return self._difference()
        if kept.usable_tokens - self.cached_tokens >= lost_tokens // 2:
            return RereadReason.DISK
        if kept.stored_tokens - self.cached_tokens >= lost_tokens // 2:
            return RereadReason.NOT_CUTTABLE
        return RereadReason.EVICTED

    def _difference(self) -> RereadReason:
        at = self.common_tokens
        # Places of media have negative keys.
        if any(tokens[at] < 0 for tokens in (self.prompt, self.earlier) if at < len(tokens)):
            return RereadReason.MEDIA
        return RereadReason.ANSWER if at >= self.answer_at else RereadReason.DIFFERS


_PARTED: Final = (RereadReason.DIFFERS, RereadReason.ANSWER, RereadReason.MEDIA)


class _Computed:
    """A prompt that was computed, maybe with its answer."""

    __slots__ = ("_blocks", "answer_at", "salt", "tokens")

    def __init__(self, tokens: Tokens, answer_at: int, salt: str) -> None:
        self.tokens, self.answer_at, self.salt = tokens, answer_at, salt
        self._blocks: npt.NDArray[np.uint64] | None = None

    def blocks(self, begin: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of its blocks from a token on. They are made when they are needed."""
        if self._blocks is None:
            self._blocks = _windows(self.tokens)[::_BLOCK_TOKENS].copy()
        return self._blocks[-(-begin // _BLOCK_TOKENS) :]

    def begins(self, tokens: Tokens) -> bool:
        """Return whether these tokens begin with all of its own."""
        length = len(self.tokens)
        return (
            length <= len(tokens)
            # Most prompts of one chat template end alike, and begin alike.
            and self.tokens[length - 1] == tokens[length - 1]
            and self.tokens[length // 2] == tokens[length // 2]
            and common_tokens(self.tokens, tokens) == length
        )


class RecentPrompts:
    """The prompts that a model has computed last, at most 64 with 2^20 tokens in all. All turns of
    a conversation are one of them.

    A prompt is never compared with one of another salt: neither its text nor the fact that there
    was such a prompt is shown to anybody else.
    """

    def __init__(self, most_prompts: int = _MOST_PROMPTS, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_prompts, self._most_tokens = most_prompts, most_tokens
        self._prompts: deque[_Computed] = deque()
        self._tokens = 0

    def note(self, tokens: Tokens, answer_at: int, salt: str) -> None:
        """Remember tokens that were computed, which nobody changes from now on. ``answer_at`` is
        where their answer begins."""
        if not 0 < len(tokens) <= self._most_tokens:
            return
        noted = _Computed(tokens, answer_at, salt)
        for earlier in list(self._of(salt)):
            if noted.begins(earlier.tokens):
                noted = earlier
            elif not earlier.begins(tokens):
                continue
            self._prompts.remove(earlier)
            self._tokens -= len(earlier.tokens)
        self._prompts.append(noted)
        self._tokens += len(noted.tokens)
        while len(self._prompts) > self._most_prompts or self._tokens > self._most_tokens:
            self._tokens -= len(self._prompts.popleft().tokens)

    def overlap(self, tokens: Tokens, salt: str, cached_tokens: int) -> Overlap | None:
        """Return what a prompt, of which the cache had ``cached_tokens``, shares with the earlier
        one of which it repeats most. None: it repeats too little for anybody to notice."""
        # The last token of a prompt is always computed.
        read_tokens = len(tokens) - 1 - cached_tokens
        least_tokens = max(_LEAST_TOKENS, len(tokens) // _LEAST_PART)
        if read_tokens < least_tokens:
            return None
        read = np.sort(_windows(tokens[cached_tokens:]))
        best: Overlap | None = None
        for earlier in self._of(salt):
            common = min(common_tokens(earlier.tokens, tokens), len(tokens) - 1)
            before = max(0, common - cached_tokens)
            behind = _BLOCK_TOKENS * _found(earlier.blocks(common), read)
            again = min(before + behind, read_tokens)
            if again >= max(least_tokens, best.again_tokens if best is not None else 0):
                best = Overlap(
                    tokens, earlier.tokens, earlier.answer_at, cached_tokens, common, again
                )
        return best

    def _of(self, salt: str) -> Iterator[_Computed]:
        return (earlier for earlier in self._prompts if earlier.salt == salt)


def _found(blocks: npt.NDArray[np.uint64], among: npt.NDArray[np.uint64]) -> int:
    """Return how many different blocks are ``among`` the sorted ones. A text that repeats itself
    counts once."""
    if not len(blocks) or not len(among):
        return 0
    places = np.minimum(np.searchsorted(among, blocks), len(among) - 1)
    return len(np.unique(blocks[among[places] == blocks]))


def _windows(tokens: Tokens) -> npt.NDArray[np.uint64]:
    """Return a hash of the tokens of each place and the ones behind it, a block in all. A collision
    makes an explanation wrong, and nothing else."""
    hashes = tokens.view(np.uint32).astype(np.uint64)
    if len(hashes) < _BLOCK_TOKENS:
        return hashes[:0]
    width = 1
    while width < _BLOCK_TOKENS:
        hashes = (hashes[:-width] * _FACTORS[0] + hashes[width:]) * _FACTORS[1]
        hashes ^= hashes >> _SHIFT
        width *= 2
    return hashes
