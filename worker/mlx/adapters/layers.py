"""Layers of a model that adapters change, each in its own way, and that compute what they did
before when no adapter is active.

A layer keeps its class, as a subclass that computes the change too: models look into their layers'
weights, and their names and parameters must stay what they are. mlx-lm's own layers (``LoRALinear``
and its siblings) wrap the layer instead, and know one adapter.

The results are those of mlx-lm's layers, at inference: the change is computed in the precision of
the adapter's matrices, and added in that of the layer.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import switch_layers as lm
from mlx_vlm.models import switch_layers as vlm

_EXPERTS: Final = (
    *(lm.SwitchLinear, lm.QuantizedSwitchLinear, vlm.SwitchLinear, vlm.QuantizedSwitchLinear),
)
_LINEAR: Final = (nn.Linear, nn.QuantizedLinear)
_EMBEDDING: Final = (nn.Embedding, nn.QuantizedEmbedding)


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    """What an adapter has for one layer, as mlx-lm has it: ``a`` [inputs, rank], ``b`` [rank,
    outputs]; of experts [experts, rank, inputs] and [experts, outputs, rank]."""

    a: mx.array
    b: mx.array
    m: mx.array | None
    """The magnitudes of the layer's outputs; None without DoRA."""


@dataclass(slots=True)
class ActiveAdapter:
    """The adapter that a model's changed layers apply from now on. Engine thread.

    Nothing needs to be computed when it changes: it counts for what is added to the graph.
    """

    adapter_id: str = ""
    """Empty: none."""


class LayerChange(Protocol):
    """What an adapter does to a layer."""

    def linear(self, layer: Any, x: mx.array, y: mx.array) -> mx.array:
        """Return what replaces a linear layer's output ``y``."""

    def experts(self, x: mx.array, y: mx.array, indices: mx.array, *, by_expert: bool) -> mx.array:
        """Return what replaces the output of a layer of experts. ``by_expert``: ``indices`` are
        sorted."""

    def embedding(self, tokens: mx.array, y: mx.array) -> mx.array:
        """Return what replaces the embeddings of some tokens."""

    def logits(self, x: mx.array, y: mx.array) -> mx.array:
        """Return what replaces the output of a layer of embeddings that is used as a linear
        one."""


@dataclass(slots=True)
class LayerChanges:
    """The changes of one layer."""

    active: ActiveAdapter
    by_adapter: dict[str, LayerChange] = field(default_factory=dict)

    @property
    def current(self) -> LayerChange | None:
        """What the active adapter does to the layer; None: nothing."""
        return self.by_adapter.get(self.active.adapter_id)


class LowRankChange:
    """The product of two small matrices, added to a layer's weights in effect."""

    def __init__(self, matrices: LayerMatrices, scale: float, weight: mx.array | None) -> None:
        """``weight`` are the layer's own, which only DoRA needs."""
        self._a, self._b, self._scale = matrices.a, matrices.b, scale
        self._ratio: mx.array | None = None
        if matrices.m is not None:
            assert weight is not None
            # mlx-lm computes this in each step.
            adapted = weight + (scale * self._b.T) @ self._a.T
            self._ratio = matrices.m / mx.linalg.norm(adapted, axis=1)

    @property
    def arrays(self) -> list[mx.array]:
        """All that it keeps."""
        return [self._a, self._b, *(() if self._ratio is None else (self._ratio,))]

    @property
    def is_nothing(self) -> bool:
        """Whether it changes nothing, as that of a layer which training never reached."""
        return self._ratio is None and not mx.any(self._b).item()

    def linear(self, layer: Any, x: mx.array, y: mx.array) -> mx.array:
        change = (self._scale * ((x @ self._a) @ self._b)).astype(x.dtype)
        if self._ratio is None:
            return y + change
        ratio = self._ratio.astype(x.dtype)
        if "bias" not in layer:
            return ratio * (y + change)
        bias: mx.array = layer.bias
        return ratio * (y - bias + change) + bias

    def experts(self, x: mx.array, y: mx.array, indices: mx.array, *, by_expert: bool) -> mx.array:
        for matrix in (self._a, self._b):
            x = mx.gather_mm(
                x, matrix.swapaxes(-1, -2), rhs_indices=indices, sorted_indices=by_expert
            )
        return y + (self._scale * x).astype(y.dtype)

    def embedding(self, tokens: mx.array, y: mx.array) -> mx.array:
        return y + (self._scale * (self._a[tokens] @ self._b)).astype(y.dtype)

    def logits(self, x: mx.array, y: mx.array) -> mx.array:
        return y + (self._scale * ((x @ self._b.T) @ self._a.T)).astype(x.dtype)


class _Changed:
    """A layer that adapters change: the part that is the same for all kinds."""

    adapter_changes: LayerChanges


class _ChangedLinear(_Changed):
    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = super().__call__(x)  # type: ignore[misc]  # The layer's own class has it.
        change = self.adapter_changes.current
        return y if change is None else change.linear(self, x, y)


class _ChangedExperts(_Changed):
    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        y: mx.array = super().__call__(x, indices, sorted_indices=sorted_indices)  # type: ignore[misc]
        change = self.adapter_changes.current
        if change is None:
            return y
        return change.experts(x, y, indices, by_expert=sorted_indices)


class _ChangedEmbedding(_Changed):
    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = super().__call__(x)  # type: ignore[misc]
        change = self.adapter_changes.current
        return y if change is None else change.embedding(x, y)

    def as_linear(self, x: mx.array) -> mx.array:
        y: mx.array = super().as_linear(x)  # type: ignore[misc]
        change = self.adapter_changes.current
        return y if change is None else change.logits(x, y)


def can_change(layer: Any, *, dora: bool) -> bool:
    """Return whether an adapter can change a layer of this kind."""
    return isinstance(layer, _LINEAR if dora else (*_LINEAR, *_EXPERTS, *_EMBEDDING))


def matrix_shapes(layer: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes that the two matrices of an adapter of this rank have for a layer."""
    shape = tuple(layer.weight.shape)
    inputs = layer.scales.shape[-1] * layer.group_size if "scales" in layer else shape[-1]
    if isinstance(layer, _EXPERTS):
        experts, outputs = shape[:2]
        return (experts, rank, inputs), (experts, outputs, rank)
    if isinstance(layer, _EMBEDDING):
        return (shape[0], rank), (rank, inputs)
    return (inputs, rank), (rank, shape[0])


def plain_weight(layer: Any) -> mx.array:
    """Return a linear layer's weights, of a quantized one as they are computed with."""
    if "scales" not in layer:
        weight: mx.array = layer.weight
        return weight
    return mx.dequantize(
        layer.weight,
        layer.scales,
        layer.get("biases"),
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
    )


def changes_of(layer: Any, active: ActiveAdapter) -> LayerChanges:
    """Return the changes of a layer, which it applies from now on."""
    known = vars(layer).get("adapter_changes")
    if isinstance(known, LayerChanges):
        return known
    changes = LayerChanges(active)
    kind: Any = type(layer)
    layer.__class__ = _changed(kind)
    # Apart from the arrays and modules that mlx knows of: it is no part of the model's parameters.
    object.__setattr__(layer, "adapter_changes", changes)
    return changes


@cache
def _changed(kind: type) -> type:
    """Return the subclass of a layer's class that computes the changes too."""
    if issubclass(kind, _LINEAR):
        part: type = _ChangedLinear
    else:
        part = _ChangedExperts if issubclass(kind, _EXPERTS) else _ChangedEmbedding
    return type(kind.__name__, (part, kind), {"__module__": kind.__module__})
