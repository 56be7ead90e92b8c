"""Hidden states taken out of forward passes: what some layers of a model pass on for each token.

Few model classes of mlx-vlm, and none of mlx-lm, return them, so the modules that make them are
made to leave them here: each gets a class of its own that is called as before. A pass whose
states are not captured costs one more Python call for each of these modules.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import mlx.core as mx

from lmx.worker.mlx.module_calls import wrap_call

_TRUNKS: Final = ("model", "backbone", "transformer")
_NORMS: Final = ("norm", "norm_f", "final_layernorm", "ln_f")


class HiddenStates(NamedTuple):
    """The hidden states of consecutive tokens of one row."""

    begin: int
    """The place of the first of them in the row."""

    states: mx.array
    """[1, tokens, width]; of several layers one after the other."""


class HiddenTap:
    """Captures what modules of one model return. Engine thread."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._observed: list[list[mx.array]] | None = None
        self._modules = len(modules)
        for place, module in enumerate(modules):
            wrap_call(module, partial(self._observe, place))

    @contextmanager
    def capturing(self) -> Iterator[Callable[[], mx.array]]:
        """Capture the forward pass inside of the block. The function returns the states,
        [rows, tokens, width], not evaluated."""
        observed: list[list[mx.array]] = [[] for _ in range(self._modules)]
        self._observed = observed
        try:
            # Some models process the rows of a batch one after the other.
            yield lambda: mx.concatenate([_joined(outputs) for outputs in observed], axis=-1)
        finally:
            self._observed = None

    def _observe(self, place: int, output: Any) -> None:
        if self._observed is not None:
            # Some layers return more than the hidden states, behind them.
            self._observed[place].append(output[0] if isinstance(output, tuple) else output)


def layer_modules(language_model: Any, layers: Sequence[int]) -> list[Any]:
    """Return the layers with these numbers, from 0 on. Raises ``ValueError`` if there is no such
    layer."""
    found = _trunk(language_model).layers
    for layer in layers:
        if not 0 <= layer < len(found):
            raise ValueError(f"there is no layer {layer}: the model has {len(found)}")
    return [found[layer] for layer in layers]


def last_norm(language_model: Any) -> Any:
    """Return the module whose output the model's head takes. Raises ``ValueError`` if it is not
    where it is in other models."""
    trunk = _trunk(language_model)
    for name in _NORMS:
        if name in trunk:
            return trunk[name]
    raise ValueError(f"the model has no last norm named {', '.join(_NORMS)}")


def _trunk(language_model: Any) -> Any:
    for name in _TRUNKS:
        trunk = getattr(language_model, name, None)
        if trunk is not None and hasattr(trunk, "layers"):
            return trunk
    raise ValueError(f"the model's layers are not in {', '.join(_TRUNKS)}")


def _joined(outputs: Sequence[mx.array]) -> mx.array:
    return outputs[0] if len(outputs) == 1 else mx.concatenate(list(outputs), axis=0)
