"""The blocks of a model's eyes and ears: after each of them, encoding can pause.

MLX computes nothing before it is asked for. So the whole of an encoding is written down at once,
with the output of each block noted on the way, and these are then computed one after the other, in
as many steps as other rows want to come between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from lmx.worker.mlx.media.encoding import Features
from lmx.worker.mlx.module_calls import wrap_call

_OTHERS: Final = frozenset({"language_model", "talker", "code2wav", "lm_head"})
"""The parts of a model that neither see nor hear."""


class BlockTap:
    """Notes what the blocks of a model's eyes and ears make. Engine thread."""

    def __init__(self, model: Any) -> None:
        self._noted: list[mx.array] | None = None
        for block in _blocks(model):
            wrap_call(block, self._note)

    @contextmanager
    def noting(self) -> Iterator[list[mx.array]]:
        """Note, as long as the block of the statement runs, what the blocks of the model make."""
        self._noted = []
        try:
            yield self._noted
        finally:
            self._noted = None

    def _note(self, output: Any) -> None:
        if self._noted is not None:
            made = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(made, mx.array):
                self._noted.append(made)


class Encoding:
    """The features of one picture, sound or video while they are computed. Engine thread."""

    def __init__(self, features: Features, steps: list[mx.array]) -> None:
        """``steps`` are what has to be computed before the features, in order."""
        self.features = features
        self._left: deque[list[mx.array]] = deque([[step] for step in steps])
        self._left.append(features.arrays)
        self._all = len(self._left)

    @property
    def done_share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return 1.0 - len(self._left) / self._all

    def advance(self, budget_s: float) -> bool:
        """Compute the next parts, at least one, and no more than seem to fit into the time; return
        whether all are done."""
        began_s = time.perf_counter()
        longest_s = 0.0
        while self._left:
            now_s = time.perf_counter()
            if longest_s and now_s - began_s + longest_s > budget_s:
                return False
            mx.eval(self._left.popleft())
            longest_s = max(longest_s, time.perf_counter() - now_s)
        return True


def _blocks(module: Any) -> Iterator[Any]:
    for name, child in module.children().items():
        if name in _OTHERS:
            continue
        if isinstance(child, list):
            modules = [each for each in child if isinstance(each, nn.Module)]
            alike = len(modules) > 1 and len({type(each) for each in modules}) == 1
            # A block is no single layer: what changes layers looks at their classes.
            if alike and all(each.children() for each in modules):
                yield from modules
            else:
                for each in modules:
                    yield from _blocks(each)
        elif isinstance(child, nn.Module):
            yield from _blocks(child)
