"""Random answers under a constraint, without a model: what is allowed is all that counts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmx.worker.engine.values import Constraint

# Often enough, so that strings and arrays come to their end.
_CLOSING_SHARE = 0.3
_CLOSING = '"}])'


def allowed_tokens(constraint: Constraint) -> NDArray[np.int64] | None:
    """Return the tokens that may be next, None for all."""
    mask = constraint.mask()
    if mask is None:
        return None
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def allowed_set(constraint: Constraint) -> set[int]:
    """Return the tokens that may be next, where not all may."""
    allowed = allowed_tokens(constraint)
    assert allowed is not None
    return set(allowed.tolist())


def allows(choices: NDArray[np.int64], token: int) -> bool:
    """Return whether a token is among the choices, which are in order."""
    place = int(np.searchsorted(choices, token))
    return place < len(choices) and bool(choices[place] == token)


def walk(
    constraint: Constraint,
    tokenizer: Any,
    eos: frozenset[int],
    seed: int,
    phrases: Sequence[str] = (),
    most_tokens: int = 2000,
) -> list[int]:
    """Return the tokens of an answer that ended by itself, without EOS.

    Now and then one of ``phrases`` is written as far as it goes: what chance never spells.
    """
    rng = np.random.default_rng(seed)
    closing = tokenizer.convert_tokens_to_ids(list(_CLOSING))
    spelled = [tokenizer.encode(phrase, add_special_tokens=False) for phrase in phrases]
    ahead: list[int] = []
    tokens: list[int] = []
    for _ in range(most_tokens):
        choices = allowed_tokens(constraint)
        assert choices is not None and len(choices), "a constraint that allows nothing"
        if not ahead and spelled and rng.random() < _CLOSING_SHARE / 3:
            ahead = list(spelled[int(rng.integers(len(spelled)))])
        ends = [token for token in closing if allows(choices, token)]
        if ahead and allows(choices, ahead[0]):
            token = ahead.pop(0)
        else:
            ahead = []
            closes = ends and rng.random() < _CLOSING_SHARE
            token = int(rng.choice(ends if closes else choices))
        constraint.accept(token)
        if token in eos:
            return tokens
        tokens.append(token)
    raise AssertionError(f"no end after {most_tokens}: {tokenizer.decode(tokens)[-200:]!r}")


def feed(constraint: Constraint, tokens: Sequence[int]) -> None:
    """Take tokens that must all be allowed."""
    for token in tokens:
        choices = allowed_tokens(constraint)
        assert choices is None or token in choices, f"{token} is not next"
        constraint.accept(token)
