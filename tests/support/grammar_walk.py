"""Random answers under a constraint, without a model: what is allowed is all that counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmx.worker.engine import Constraint

# Often enough, so that strings and arrays come to their end.
_CLOSING_SHARE = 0.3
_CLOSING = '"}])<'


def allowed_tokens(constraint: Constraint) -> NDArray[np.int64] | None:
    """Return the tokens that may be next, None for all."""
    mask = constraint.mask()
    if mask is None:
        return None
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def walk(
    constraint: Constraint, tokenizer: Any, eos: frozenset[int], seed: int, most_tokens: int = 3000
) -> list[int]:
    """Return the tokens of an answer that ended by itself, without EOS."""
    rng = np.random.default_rng(seed)
    closing = tokenizer.convert_tokens_to_ids(list(_CLOSING))
    tokens: list[int] = []
    for _ in range(most_tokens):
        choices = allowed_tokens(constraint)
        assert choices is not None and len(choices), "a constraint that allows nothing"
        ends = np.intersect1d(choices, closing)
        if len(ends) and rng.random() < _CLOSING_SHARE:
            choices = ends
        token = int(rng.choice(choices))
        constraint.accept(token)
        if token in eos:
            return tokens
        tokens.append(token)
    raise AssertionError(f"no end after {most_tokens}: {tokenizer.decode(tokens)[-200:]!r}")


def feed(constraint: Constraint, tokens: list[int]) -> None:
    """Take tokens that must all be allowed."""
    for token in tokens:
        choices = allowed_tokens(constraint)
        assert choices is None or token in choices, f"{token} is not next"
        constraint.accept(token)
