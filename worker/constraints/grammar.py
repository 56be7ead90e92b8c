"""Decides which tokens a row may take next: by its grammar, and by what is banned. Engine thread.

It does not know where a grammar comes from (:mod:`lmx.worker.constraints.compiler`), nor what a
model thinks before it answers (:mod:`lmx.worker.constraints.thinking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.worker.constraints.error_texts import explain_error
from lmx.worker.engine.values import Constraint

Mask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The masks that constraints need of a vocabulary. A mask is packed bits, see
    ``Constraint``. Masks are shared, so nobody may write into them."""

    tokens: int
    """How many tokens there are. Tokens beyond ``vocabulary_size`` can't be drawn."""
    vocabulary_size: int
    """The width of the logits."""
    eos_token_ids: frozenset[int]
    anything: Mask
    """Allows all tokens."""
    end: Mask
    """Allows only EOS."""
    thinking: Mask
    """Allows all tokens except EOS."""
    line_breaks: Mask
    """Allows the tokens that consist of line breaks only."""

    def new(self) -> Mask:
        """Return a mask that allows nothing, wide enough for all tokens."""
        return np.zeros((self.tokens + 31) // 32, np.uint32)

    def cut(self, mask: Mask) -> Mask:
        """Return the mask with the width of the logits; changes the last word of ``mask``."""
        words = (self.vocabulary_size + 31) // 32
        if self.vocabulary_size % 32:
            mask[words - 1] &= np.uint32((1 << self.vocabulary_size % 32) - 1)
        return mask[:words]


def pack(tokens: Iterable[int], vocabulary_size: int) -> Mask:
    """Return a mask with the width of the logits that allows these tokens."""
    bits = np.zeros((vocabulary_size + 31) // 32 * 32, np.uint8)
    bits[[token for token in tokens if token < vocabulary_size]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def allow(mask: Mask, token: int) -> None:
    """Allow one more token."""
    mask[token // 32] |= np.uint32(1 << token % 32)


def allowed(mask: Mask, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(mask[token // 32] >> np.uint32(token % 32) & 1)


class Form(NamedTuple):
    """One form that an answer may have."""

    matcher: LLMatcher
    """The state of its grammar."""
    open_end: bool = False
    """Whether the model may end a complete answer with any token that does not continue the form,
    as freely as if there were no form."""

    @property
    def may_end(self) -> bool:
        """Whether any token ends the answer here."""
        return self.open_end and bool(self.matcher.is_accepting())

    def copy(self) -> Form:
        """Return a copy in the same state."""
        return Form(self.matcher.deep_copy(), self.open_end)


class GrammarConstraint:
    """Keeps an answer to one of several forms. It begins with the answer's first token.

    A form that is complete allows only EOS. With an open end it allows any token; a token that does
    not continue the form ends the answer, and after it only EOS is allowed. Raises ``LmxError`` for
    a token that no form allows; and if a grammar turns out to be too complex to continue, or to ask
    for text that the model can't spell. If that shows early, it is found before the answer begins.
    """

    def __init__(self, forms: Sequence[Form], masks: TokenMasks) -> None:
        self._forms = list(forms)
        self._masks = masks
        self._mask = masks.new()
        self._more = masks.new() if len(self._forms) > 1 else self._mask
        self._ended = False

    def mask(self) -> Mask:
        if self._ended:
            return self._masks.end.copy()
        if any(form.may_end for form in self._forms):
            return self._masks.anything.copy()
        self._fill(self._forms[0].matcher, self._mask)
        for form in self._forms[1:]:
            self._fill(form.matcher, self._more)
            self._mask |= self._more
        return self._masks.cut(self._mask)

    def allows(self, token: int) -> bool:
        """Return whether ``token`` may come next, as a part of the answer."""
        return not self._ended and any(_fits(form, token) for form in self._forms)

    def accept(self, token: int) -> None:
        if self._ended:
            return
        if len(self._forms) > 1 or self._forms[0].open_end:
            fitting = [form for form in self._forms if _fits(form, token)]
            if not fitting and any(form.may_end for form in self._forms):
                self._ended = True
                return
            self._forms = fitting or self._forms[:1]
        for form in self._forms:
            if not form.matcher.consume_token(token):
                if allowed(self._mask, token):
                    raise _broken(form.matcher)
                raise forbidden(token)

    def fork(self) -> GrammarConstraint:
        twin = GrammarConstraint([form.copy() for form in self._forms], self._masks)
        twin._ended = self._ended
        return twin

    def _fill(self, matcher: LLMatcher, mask: Mask) -> None:
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise _broken(matcher)


def _fits(form: Form, token: int) -> bool:
    return bool(form.matcher.validate_tokens([token]))


def _broken(matcher: LLMatcher) -> LmxError:
    return LmxError(
        ErrorCode.STRUCTURE_NOT_ENFORCEABLE,
        "The answer can't be held to its form any further: "
        f"{explain_error(matcher.get_error())}. Change the form, or leave it out.",
    )


def forbidden(token: int) -> LmxError:
    """Return the error for a token that the mask did not allow."""
    return LmxError(
        ErrorCode.ENGINE_ERROR, f"The answer can't be held to its form: token {token} is not next."
    )


@dataclass(frozen=True, slots=True)
class BanRules:
    """What a request bans, in tokens."""

    allowed: Mask
    """The tokens that may come at all, as wide as the logits."""
    words: tuple[tuple[int, ...], ...]
    """Sequences of tokens of which the last may not come after the others."""


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
        # As many of the last tokens are kept as a word has before its last one.
        self._kept = max(map(len, rules.words), default=1) - 1
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
        self._last = (*self._last, token)[-self._kept :] if self._kept else ()
        if self._inner:
            self._inner.accept(token)

    def fork(self) -> BanConstraint:
        twin = BanConstraint(self._rules, self._inner.fork() if self._inner else None)
        twin._last = self._last
        return twin
