"""Which settings let several models stay loaded at a time: what each gives up of its own. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

_USUAL_TOKENS: Final = 32_768
_LEAST_TOKENS: Final = 4096


@dataclass(frozen=True, slots=True)
class Share:
    """The settings of a model on which its memory depends."""

    context_tokens: int | None
    """None: the model has no context that could be shorter."""
    kv_bits: Literal[4, 8] | None
    concurrency: int


@dataclass(frozen=True, slots=True)
class Rung:
    """Settings, and what is reserved with them."""

    share: Share
    reserve_bytes: int


Ladder = tuple[Rung, ...]
"""A model's settings, from its own down to the least: each rung reserves less than that above."""


def ladder(own: Share, reserved: Callable[[Share], int | None]) -> Ladder:
    """Return the ladder of a model. ``reserved`` returns None for settings that it can't have. In
    this order it gives up: a context beyond 32,768 tokens, half of the KV cache's bits, room for
    more than one full-length request, more of its context, and half of the bits again."""
    first = reserved(own)
    if first is None:
        return ()
    rungs = [Rung(own, first)]
    for change in _changes(own):
        share = change(rungs[-1].share)
        taken = reserved(share)
        if taken is not None and taken < rungs[-1].reserve_bytes:
            rungs.append(Rung(share, taken))
    return tuple(rungs)


Change = Callable[[Share], Share]


def _changes(own: Share) -> Iterator[Change]:
    yield from _shorter(own.context_tokens, _USUAL_TOKENS)
    if own.kv_bits is None:
        yield lambda share: replace(share, kv_bits=8)
    if own.concurrency > 1:
        yield lambda share: replace(share, concurrency=1)
    shortest = None if own.context_tokens is None else min(own.context_tokens, _USUAL_TOKENS)
    yield from _shorter(shortest, _LEAST_TOKENS)
    if own.kv_bits != 4:
        yield lambda share: replace(share, kv_bits=4)


def _shorter(tokens: int | None, least: int) -> Iterator[Change]:
    while tokens is not None and tokens > least:
        tokens = max(least, tokens // 2)
        yield partial(replace, context_tokens=tokens)


def fit(ladders: Mapping[str, Ladder], budget_bytes: int) -> dict[str, Rung] | None:
    """Return a rung for each model, so that all of them together fit the budget; None if the last
    rungs do not. Whoever gave up least gives up next, of several the largest; afterwards each gets
    back what there is room for."""
    at = dict.fromkeys(ladders, 0)

    def taken(name: str) -> int:
        return ladders[name][at[name]].reserve_bytes

    while sum(map(taken, at)) > budget_bytes:
        lower = [name for name in at if at[name] + 1 < len(ladders[name])]
        if not lower:
            return None
        at[min(lower, key=lambda name: (at[name], -taken(name)))] += 1
    for name in at:
        while at[name]:
            at[name] -= 1
            if sum(map(taken, at)) > budget_bytes:
                at[name] += 1
                break
    return {name: ladders[name][place] for name, place in at.items()}
