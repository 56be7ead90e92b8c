"""Which tokens a row may take next, by its grammar. Engine thread.

Not concerned with where a grammar comes from (:mod:`lmx.worker.constraints.compiler`), nor with
what a model thinks before it answers (:mod:`lmx.worker.constraints.thinking`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.worker.constraints.words import in_words

Mask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """What constraints need to know of a vocabulary. Masks are packed bits, see
    :class:`~lmx.worker.engine.Constraint`; they are shared, so nobody writes into them.

    ``tokens`` may be more than ``vocabulary_size``, the width of the logits: those can't be
    drawn. ``anything`` allows all of them, ``end`` EOS alone, ``thinking`` all but EOS,
    ``line_breaks`` the tokens that are nothing else.
    """

    tokens: int
    vocabulary_size: int
    eos_token_ids: frozenset[int]
    anything: Mask
    end: Mask
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


class Form(NamedTuple):
    """One form that an answer may have. ``matcher`` is where it has come to.

    ``open_end``: where it is whole, the answer ends with whatever the model would write next
    that is no more of the form: as freely as if there were none.
    """

    matcher: LLMatcher
    open_end: bool = False

    @property
    def may_end(self) -> bool:
        """Whether any token ends it here."""
        return self.open_end and bool(self.matcher.is_accepting())

    def copy(self) -> Form:
        """Return it in the same state."""
        return Form(self.matcher.deep_copy(), self.open_end)


class GrammarConstraint:
    """Keeps an answer to one of several forms. Begins with its first token.

    A form that is whole allows EOS alone. With an open end it allows any token; one that is no
    more of the form comes to nothing, and after it EOS alone is allowed. Raises ``LmxError``
    for a token that no form allows, and where a grammar turns out to be too complex to go on,
    or to ask for what the model can't spell: that is found before where it shows early on.
    """

    __slots__ = ("_ended", "_forms", "_mask", "_masks", "_more")

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
        """Return whether ``token`` may be next, as a part of the answer."""
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
        f"{in_words(matcher.get_error())}. Change the form, or leave it out.",
    )


def forbidden(token: int) -> LmxError:
    """Return the error for a token that the mask did not allow."""
    return LmxError(
        ErrorCode.ENGINE_ERROR, f"The answer can't be held to its form: token {token} is not next."
    )
