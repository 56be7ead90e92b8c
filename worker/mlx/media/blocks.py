"""The parts of an encoding: after each of them, it can pause.

MLX computes nothing before it is evaluated. So the whole of an encoding is recorded at once, with
what each part makes, and the parts are then computed one after the other, in as many steps as other
rows want to come between. A part is a block of the vision or audio encoder, or less of it if that
would take too long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from lmx.worker.mlx.media.encoding import Features
from lmx.worker.mlx.media.slices import Part, Slicer
from lmx.worker.mlx.module_calls import wrap_call

_OTHERS: Final = frozenset({"language_model", "talker", "code2wav", "lm_head"})
"""The parts of a model that are no encoders."""


class BlockTap:
    """Records the parts in which a model's vision and audio encoders compute. Engine thread."""

    def __init__(self, model: Any) -> None:
        found = list(blocks(model, _OTHERS))
        known = {id(block) for block in found}
        encoders = list(_modules(model))
        small = [one for one in encoders if known.isdisjoint(map(id, _modules(one)))]
        self._slicer = Slicer(encoders, small)
        for block in found:
            wrap_call(block, self._note)

    @contextmanager
    def recording(self, part_s: float) -> Iterator[Callable[[Features], Encoding]]:
        """Record, until the end of the block, what the model computes, in parts that
        seem to take ``part_s`` at most. The function returns how the features are computed."""
        with self._slicer.recording(part_s) as parts:
            yield lambda features: Encoding(features, parts, self._slicer)

    def _note(self, output: Any) -> None:
        made = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(made, mx.array):
            self._slicer.pause(made)


class Encoding:
    """The features of one picture, sound or video while they are computed. Engine thread."""

    def __init__(self, features: Features, parts: Sequence[Part], slicer: Slicer) -> None:
        """``parts`` are what has to be computed before the features, in order."""
        self.features = features
        self._slicer = slicer
        self._left = deque(parts)
        self._all = len(self._left) + 1
        self._done = False

    @property
    def done_share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return 1.0 if self._done else 1.0 - (len(self._left) + 1) / self._all

    def advance(self, budget_s: float) -> bool:
        """Compute the next parts, at least one, and no more than seem to fit into the time; return
        whether all are done."""
        began_s = time.perf_counter()
        longest_s = 0.0
        while not self._done:
            now_s = time.perf_counter()
            if longest_s and now_s - began_s + longest_s > budget_s:
                return False
            self._compute()
            longest_s = max(longest_s, time.perf_counter() - now_s)
        return True

    def _compute(self) -> None:
        if not self._left:
            mx.eval(self.features.arrays)
            self._done = True
            return
        part = self._left.popleft()
        began_s = time.perf_counter()
        mx.eval(part.array)
        self._slicer.computed(part, time.perf_counter() - began_s)


def _modules(module: Any) -> Iterator[Any]:
    """Yield a module and those in it that belong to an encoder."""
    yield module
    for name, child in module.children().items():
        if name not in _OTHERS:
            for _, each in tree_flatten(child, is_leaf=nn.Module.is_module):
                yield from _modules(each)


def blocks(module: Any, others: Container[str] = ()) -> Iterator[Any]:
    """Yield the layers that a module's stacks are of, except those within its children with the
    names of ``others``."""
    for name, child in module.children().items():
        if name in others:
            continue
        if isinstance(child, list):
            modules = [each for each in child if isinstance(each, nn.Module)]
            alike = len(modules) > 1 and len({type(each) for each in modules}) == 1
            # A block is no single layer: what changes layers looks at their classes.
            if alike and all(each.children() for each in modules):
                yield from modules
            else:
                for each in modules:
                    yield from blocks(each, others)
        elif isinstance(child, nn.Module):
            yield from blocks(child, others)
