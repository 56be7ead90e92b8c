"""Which tokens a row may take next, by its grammar. Engine thread.

Not concerned with where a grammar comes from (:mod:`lmx.worker.structure`), nor with what a
model thinks before it answers (:mod:`lmx.worker.thinking_constraint`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from lmx.protocol.errors import ErrorCode, LmxError

Mask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """What constraints need to know of a vocabulary. Masks are packed bits, see
    :class:`~lmx.worker.engine.Constraint`; they are shared, so nobody writes into them.

    ``tokens`` may be more than ``vocabulary_size``, the width of the logits: those can't be
    drawn. ``thinking`` allows all but EOS, ``line_breaks`` the tokens that are nothing else.
    """

    tokens: int
    vocabulary_size: int
    eos_token_ids: frozenset[int]
    thinking: Mask
    line_breaks: Mask

    def new(self) -> Mask:
        """Return a mask that allows nothing, wide enough for all tokens."""
        return np.zeros((self.tokens + 31) // 32, np.uint32)

    def cut(self, mask: Mask) -> Mask:
        """Return the mask as wide as the logits; changes the last word of ``mask``."""
        words = (self.vocabulary_size + 31) // 32
        if self.vocabulary_size % 32:
            mask[words - 1] &= np.uint32((1 << self.vocabulary_size % 32) - 1)
        return mask[:words]


def pack(tokens: Iterable[int], vocabulary_size: int) -> Mask:
    """Return a mask as wide as the logits that allows these tokens."""
    bits = np.zeros((vocabulary_size + 31) // 32 * 32, np.uint8)
    bits[[token for token in tokens if token < vocabulary_size]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def allow(mask: Mask, token: int) -> None:
    """Allow one token more."""
    mask[token // 32] |= np.uint32(1 << token % 32)


def allowed(mask: Mask, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(mask[token // 32] >> np.uint32(token % 32) & 1)


class GrammarConstraint:
    """Keeps an answer to one of several grammars. Begins with its first token.

    A grammar that is whole allows EOS alone. Raises ``LmxError`` for a token that none of them
    allows, and where a grammar becomes too complex to go on.
    """

    __slots__ = ("_mask", "_masks", "_matchers", "_more")

    def __init__(self, matchers: Sequence[LLMatcher], masks: TokenMasks) -> None:
        self._matchers = list(matchers)
        self._masks = masks
        self._mask = masks.new()
        self._more = masks.new() if len(self._matchers) > 1 else self._mask

    def mask(self) -> Mask:
        self._fill(self._matchers[0], self._mask)
        for matcher in self._matchers[1:]:
            self._fill(matcher, self._more)
            self._mask |= self._more
        return self._masks.cut(self._mask)

    def allows(self, token: int) -> bool:
        """Return whether ``token`` may be next."""
        return any(matcher.validate_tokens([token]) for matcher in self._matchers)

    def accept(self, token: int) -> None:
        if len(self._matchers) > 1:
            fitting = [one for one in self._matchers if one.validate_tokens([token])]
            self._matchers = fitting or self._matchers[:1]
        for matcher in self._matchers:
            if not matcher.consume_token(token):
                raise _broken(matcher)

    def fork(self) -> GrammarConstraint:
        return GrammarConstraint([one.deep_copy() for one in self._matchers], self._masks)

    def _fill(self, matcher: LLMatcher, mask: Mask) -> None:
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise _broken(matcher)


def _broken(matcher: LLMatcher) -> LmxError:
    reason = matcher.get_error().partition("\n")[0]
    return LmxError(ErrorCode.ENGINE_ERROR, f"The answer can't be kept to its form: {reason}")
