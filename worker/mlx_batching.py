"""Whether a model is right when rows of different lengths decode together: found by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import mlx.core as mx
import structlog
from mlx_vlm.generate.ar import _extend_cache

from lmx.worker.engine import RowRequest, RowSampling
from lmx.worker.mlx_forward import Forward, PromptCache
from lmx.worker.mlx_prefill import PromptPrefill

log = structlog.get_logger()

# As different in length as tells: positions that are wrong by a few tokens change little.
_PROMPTS: Final = (list(range(1, 65)), [66, 67, 68, 69])
_FOLLOWING: Final = ((70, 71), (72, 73))
# Of the spread of a row's logits. Rounding moves them by much less; a padding that is not
# masked moved them by 0.2 to 4 in the models that were tried.
_TOLERANCE: Final = 0.1


def can_batch(forward: Forward) -> bool:
    """Try two rows alone and together. Logs why not.

    In mlx-vlm 0.7.10 two of some forty architectures can't: gemma2, whose attention adds the
    mask of a batch to scores of one more dimension, and internlm3, whose rope takes one offset.
    """
    alone = [
        _logits(forward, [prompt], [following])
        for prompt, following in zip(_PROMPTS, _FOLLOWING, strict=True)
    ]
    try:
        together = _logits(forward, _PROMPTS, _FOLLOWING)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        log.warning("batching.off", reason=str(error), advice="rows run one after the other")
        return False
    right = mx.concatenate(alone)
    spread = mx.linalg.norm(right - mx.mean(right, axis=-1, keepdims=True), axis=-1)
    off = cast(float, mx.max(mx.linalg.norm(together - right, axis=-1) / spread).item())
    if not off <= _TOLERANCE:
        log.warning("batching.off", off=off, advice="rows run one after the other")
    return off <= _TOLERANCE


def _logits(
    forward: Forward, prompts: Sequence[list[int]], following: Sequence[Sequence[int]]
) -> mx.array:
    """Return what comes after each prompt and its following tokens, [prompts, vocabulary]."""
    cache: PromptCache = []
    deltas: list[Any] = []
    for prompt in prompts:
        row = RowRequest(0, prompt, 1, RowSampling(0.0))
        prefill = PromptPrefill(forward, row, forward.embed(prompt), forward.new_cache(), 0)
        while not prefill.ready:
            prefill.advance(len(prompt), ())
        mx.eval(prefill.finish())
        cache = _extend_cache(cache, prefill.prompt_cache)
        deltas.append(prefill.rope_deltas())
    rope_deltas = None if deltas[0] is None else mx.concatenate(deltas)
    for tokens in zip(*following, strict=True):
        logits = forward.decode(mx.array(tokens)[:, None], cache, rope_deltas)[:, -1]
        mx.eval(logits)
    return logits.astype(mx.float32)
