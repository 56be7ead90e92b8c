"""How well a model predicts a text: the one figure by which a quantized model is compared with the
model that it was made from."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import dequantize_model as dequantize_text
from mlx_vlm.quant_utils import dequantize_model

from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.quantizing.passage import PASSAGE

MOST_TOKENS: Final = 2000
_SLICE_TOKENS: Final = 128
"""The logits of this many tokens are converted to float32 at a time."""


def perplexity(folder: Path, advanced: Callable[[float], None]) -> tuple[float, int]:
    """Return the perplexity of a model folder on :data:`PASSAGE`, and of how many tokens it is. It
    is not finite for a model that computes nonsense. ``advanced`` takes the share that is done.

    The weights of a layer are in memory only while it computes, where the class of the model has
    its layers in a list. On a CPU all is computed in float32, quantized weights too: they are the
    same numbers, and neither they nor 16-bit ones are quick there.

    Raises what :func:`lmx.worker.mlx.model.library.open_checkpoint` raises.
    """
    config = read_checkpoint_config(folder)
    checkpoint = open_checkpoint(folder, config)
    most = min(MOST_TOKENS, config.context_tokens or MOST_TOKENS)
    ids = checkpoint.tokenizer.encode(PASSAGE)[:most]
    if not on_gpu():
        _in_float32(checkpoint.model, text=checkpoint.library == "mlx-lm")
    forward = checkpoint.forward
    cache = forward.new_cache()
    layers = getattr(forward.language_model, "layers", None)
    # A layer with several caches computes several times.
    if isinstance(layers, list) and len(cache) <= len({*map(id, layers)}) == len(layers):
        _release_layers(layers, advanced)
    tokens = mx.array([ids])
    logits = forward.prompt(tokens, cache, forward.embed(tokens))[0]
    mx.eval(logits)
    loss = 0.0
    for begin in range(0, len(ids) - 1, _SLICE_TOKENS):
        end = min(begin + _SLICE_TOKENS, len(ids) - 1)
        part = logits[begin:end].astype(mx.float32)
        right = mx.take_along_axis(part, tokens[0, begin + 1 : end + 1, None], axis=-1)
        losses = mx.logsumexp(part, axis=-1) - right[:, 0]
        loss += cast(float, losses.sum().item())
    try:
        return math.exp(loss / max(len(ids) - 1, 1)), len(ids)
    except OverflowError:
        return math.inf, len(ids)


def _in_float32(model: Any, *, text: bool) -> None:
    if text:
        model.language_model.inner = dequantize_text(model.language_model.inner)
    else:
        dequantize_model(model)

    def widened(array: mx.array) -> mx.array:
        return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map(widened, model.parameters()))


def _release_layers(layers: list[Any], advanced: Callable[[float], None]) -> None:
    """Have each layer compute at once, and then let go of its weights. It computes only once."""
    for number, layer in enumerate(layers, 1):
        layer.__class__ = _releasing(type(layer), number / len(layers), advanced)


def _releasing(base: Any, share: float, advanced: Callable[[float], None]) -> Any:
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        output = base.__call__(self, *arguments, **more)
        mx.eval([array for _, array in tree_flatten(output) if isinstance(array, mx.array)])
        self.update(tree_map(lambda _: mx.zeros(0), self.parameters()))
        mx.clear_cache()
        advanced(share)
        return output

    return type(base.__name__, (base,), {"__call__": call, "__module__": base.__module__})
