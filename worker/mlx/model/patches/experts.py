"""Weights of experts that mlx-lm's classes drop or don't know.

Written for mlx-lm 0.32.2. Its class of ERNIE 4.5 drops what is added to the scores by which experts
are chosen, and that of gpt-oss doesn't know the names of weights that transformers saves without
quantization.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models import gpt_oss
from mlx_lm.utils import _get_classes

from lmx.worker.mlx.module_calls import replace_methods

_ERNIE: Final = "mlx_lm.models.ernie4_5_moe"
_CORRECTION: Final = re.compile(r"model\.layers\.(\d+)\.mlp\.moe_statics\.e_score_correction_bias")


def patch_ernie_experts(model: Any, files: Iterable[Path]) -> None:
    """Let experts be chosen as the folder's weights say if it is an ERNIE 4.5 of mlx-lm's. Where
    they have no such numbers any more, nothing is added to the scores."""
    if type(model).__module__ != _ERNIE:
        return
    for file in files:
        weights = mx.load(str(file))
        assert isinstance(weights, dict)
        for name, weight in weights.items():
            found = _CORRECTION.fullmatch(name)
            # The heads for further tokens have numbers of their own, or those behind the layers'.
            if found is not None and int(found[1]) < len(model.layers):
                layer = model.layers[int(found[1])]
                layer.mlp.correction = weight.reshape(-1)
                replace_methods(layer.mlp, __call__=_choose)


def _choose(experts: Any, x: mx.array) -> mx.array:
    scores = experts.gate_act(experts.gate(x).astype(mx.float32))
    order = mx.argpartition(-(scores + experts.correction), kth=experts.k - 1, axis=-1)
    chosen = order[..., : experts.k]
    shares = mx.take_along_axis(scores, chosen, axis=-1)
    shares = shares / mx.maximum(shares.sum(axis=-1, keepdims=True), 1e-12)
    made: mx.array = experts.switch_mlp(x, chosen)
    made = (made * shares[..., None]).sum(axis=-2).astype(made.dtype)
    return made if experts.shared_experts is None else made + experts.shared_experts(x)


class _GptOss(gpt_oss.Model):  # type: ignore[misc]  # mlx-lm has no types.
    __module__ = gpt_oss.__name__

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Return the weights under the names of the class."""
        for name in [*weights]:
            if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
                weights[f"{name}.weight"] = weights.pop(name).swapaxes(-1, -2)
        renamed: dict[str, mx.array] = super().sanitize(weights)
        return renamed


def classes_of(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the class of a model, and that of its arguments, as mlx-lm does."""
    if config["model_type"] == "gpt_oss":
        return _GptOss, gpt_oss.ModelArgs
    model, arguments = _get_classes(config)
    return model, arguments
