"""Tokens that alone may come, and words that may not. Engine thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.worker.constraints.grammar import Mask, pack
from lmx.worker.engine.values import Constraint


@dataclass(frozen=True, slots=True)
class BanRules:
    """What a request bans, in tokens."""

    allowed: Mask
    """The tokens that may come at all, as wide as the logits."""
    words: tuple[tuple[int, ...], ...]
    """Sequences of tokens of which the last may not come after the others."""

    @property
    def longest(self) -> int:
        """How many tokens the longest word has."""
        return max(map(len, self.words), default=1)


def ban_rules(
    tokenizer: Any,
    vocabulary_size: int,
    allowed_token_ids: tuple[int, ...],
    bad_words: tuple[str, ...],
) -> BanRules:
    """Return the rules of a request. Prompt thread."""
    words: dict[tuple[int, ...], None] = {}
    for word in bad_words:
        # A tokenizer has other tokens for a word behind a space.
        for text in (word.lstrip() or word, f" {word.lstrip()}"):
            tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
            if tokens and max(tokens) < vocabulary_size and text.strip():
                words[tokens] = None
    allowed = allowed_token_ids or range(vocabulary_size)
    return BanRules(pack(allowed, vocabulary_size), tuple(words))


class BanConstraint:
    """Removes banned tokens from what ``inner`` allows; None: from all tokens.

    Words are looked for in the answer alone: one that the prompt begins is not found. Raises
    ``LmxError`` where no token is left.
    """

    def __init__(self, rules: BanRules, inner: Constraint | None) -> None:
        self._rules = rules
        self._inner = inner
        self._last: tuple[int, ...] = ()

    def mask(self) -> Mask:
        allowed = self._inner.mask() if self._inner else None
        mask = self._rules.allowed.copy() if allowed is None else self._rules.allowed & allowed
        for word in self._rules.words:
            *before, last = word
            if not before or self._last[-len(before) :] == tuple(before):
                mask[last // 32] &= ~(1 << last % 32) & 0xFFFF_FFFF
        if not mask.any():
            raise LmxError(
                ErrorCode.STRUCTURE_NOT_ENFORCEABLE,
                "`allowed_token_ids` and `bad_words` leave no token with which the answer could go "
                "on, or end: allow more of them.",
            )
        return mask

    def accept(self, token: int) -> None:
        kept = self._rules.longest - 1
        self._last = (*self._last, token)[-kept:] if kept else ()
        if self._inner:
            self._inner.accept(token)

    def fork(self) -> BanConstraint:
        twin = BanConstraint(self._rules, self._inner.fork() if self._inner else None)
        twin._last = self._last
        return twin
