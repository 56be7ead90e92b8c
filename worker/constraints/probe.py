"""Finds out, before anything runs, whether answers can be written under a grammar. Prompt thread.

llguidance works a grammar out token by token, as far as an answer has come. So a grammar that is
too complex, or that can't be spelled with a vocabulary, shows only on the way. Therefore a few
answers are begun here. The verdict on a grammar is always the same: the limits are counted in
steps, and here they are a fifth of those for a real answer.
"""

import random
import time
from typing import Final, NamedTuple

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from lmx.worker.constraints.error_texts import TOO_COMPLEX, UNSPELLABLE, explain_error
from lmx.worker.constraints.grammar import Mask
from lmx.worker.constraints.vocabulary import GrammarVocabulary

LIMITS: Final = LLParserLimits(
    max_grammar_size=50_000,
    step_lexer_fuel=1_000_000,
    step_max_items=250_000,
    max_items_in_row=20_000,
    verbose_errors=False,
)
"""The limits for a real answer: a mask within them takes 0.1 s at most."""

_PROBED: Final = LLParserLimits(
    max_grammar_size=50_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_items_in_row=4_000,
    verbose_errors=False,
)
_WALKS: Final = 2
_STEPS: Final = 24
# How often a string, an object or an array is closed where it can be: chance hardly ever does.
_CLOSING_SHARE: Final = 0.3
# For all of it, seconds of the processor: a busy machine does not make a grammar complex. The
# engine thread pays such masks for each token, and stops everybody's streams meanwhile.
_MAX_S: Final = 1.0


class Verdict(NamedTuple):
    """Whether answers can be held to a grammar."""

    fault: str | None
    """Why they can't; None if they can."""
    counted: bool = True
    """Whether the verdict comes from counted steps, not from the clock: it stays the same."""


def verdict(grammars: str, vocabulary: GrammarVocabulary, *, lark: bool = False) -> Verdict:
    """Return whether answers can be held to llguidance's grammars, which are given as JSON.
    ``lark`` as for :func:`explain_error`."""
    until_s = time.thread_time() + _MAX_S
    matcher = LLMatcher(vocabulary.tokenizer, grammars, log_level=0, limits=_PROBED)
    if not matcher.is_error():
        # The first mask is where a grammar with too many alternatives fails.
        _fill(matcher, vocabulary.masks.new())
    if matcher.is_error():
        return Verdict(explain_error(matcher.get_error(), lark=lark))
    for seed in range(_WALKS):
        found = _walk(matcher.deep_copy(), vocabulary, seed, until_s)
        if found.fault:
            return found
    return Verdict(None)


def _walk(matcher: LLMatcher, vocabulary: GrammarVocabulary, seed: int, until_s: float) -> Verdict:
    masks = vocabulary.masks
    draw = random.Random(seed)
    for _ in range(_STEPS):
        if time.thread_time() > until_s:
            return Verdict(TOO_COMPLEX, counted=False)
        mask = masks.new()
        _fill(matcher, mask)
        if matcher.is_error():
            return Verdict(explain_error(matcher.get_error()))
        mask = masks.cut(mask)
        token = _drawn(mask & ~masks.end, vocabulary, draw)
        if token is None:
            return Verdict(None if mask.any() else UNSPELLABLE)
        if not matcher.consume_token(token):
            return Verdict(explain_error(matcher.get_error()))
    return Verdict(None)


def _drawn(mask: Mask, vocabulary: GrammarVocabulary, draw: random.Random) -> int | None:
    words = np.flatnonzero(mask)
    if not len(words):
        return None
    if draw.random() < _CLOSING_SHARE:
        closing = [one for one in vocabulary.closing if mask[one // 32] >> (one % 32) & 1]
        if closing:
            return draw.choice(closing)
    word = int(words[draw.randrange(len(words))])
    bits = [bit for bit in range(32) if int(mask[word]) >> bit & 1]
    return word * 32 + draw.choice(bits)


def _fill(matcher: LLMatcher, mask: Mask) -> None:
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
