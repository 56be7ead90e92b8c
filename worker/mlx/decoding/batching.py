"""Finds out by trying whether a model is right if rows of different lengths decode together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, cast

import mlx.core as mx
import structlog
from mlx_vlm.generate.ar import _extend_cache

from lmx.worker.engine import RowRequest, RowSampling
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.scheduling.device_failure import is_device_failure

log = structlog.get_logger()

# The lengths differ enough to show a fault: positions that are off by a few tokens change little.
_PROMPTS: Final = (list(range(1, 65)), [66, 67, 68, 69])
_FOLLOWING: Final = ((70, 71), (72, 73))
# A share of the spread of a row's logits. Rounding moves them by much less; padding that is not
# masked moved them by 0.2 to 4 in the models that were tried.
_TOLERANCE: Final = 0.1

_Row = tuple[PromptCache, mx.array | None]
"""A prompt's cache, and its rope deltas."""


def can_batch(forward: Forward) -> bool:
    """Try two rows alone and together. If it does not work, the reason is logged.

    In mlx-vlm 0.7.10 two of some forty architectures can't batch: gemma2, whose attention adds the
    mask of a batch to scores of one more dimension, and internlm3, whose rope takes one offset.
    """
    # This is done once for both: it is most of the work, and every load waits for it.
    rows = [_prefilled(forward, prompt) for prompt in _PROMPTS]
    alone = [
        _logits(forward, copy.deepcopy(cache), deltas, [following])
        for (cache, deltas), following in zip(rows, _FOLLOWING, strict=True)
    ]
    try:
        together = _logits(forward, *_joined(rows), _FOLLOWING)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        if is_device_failure(error):
            raise
        log.warning("batching.off", reason=str(error), advice="rows run one after the other")
        return False
    right = mx.concatenate(alone)
    spread = mx.linalg.norm(right - mx.mean(right, axis=-1, keepdims=True), axis=-1)
    off = cast(float, mx.max(mx.linalg.norm(together - right, axis=-1) / spread).item())
    if not off <= _TOLERANCE:
        log.warning("batching.off", off=off, advice="rows run one after the other")
    return off <= _TOLERANCE


def _prefilled(forward: Forward, prompt: list[int]) -> _Row:
    row = RowRequest(0, prompt, 1, RowSampling(0.0))
    prefill = PromptPrefill(forward, row, forward.new_cache(), 0)
    while not prefill.ready:
        prefill.advance(len(prompt), ())
    mx.eval(prefill.finish(), cache_states(prefill.prompt_cache))
    return prefill.prompt_cache, prefill.rope_deltas()


def _joined(rows: Sequence[_Row]) -> _Row:
    joined: PromptCache = []
    for cache, _ in rows:
        joined = _extend_cache(joined, cache)
    deltas = [each for _, each in rows if each is not None]
    return joined, mx.concatenate(deltas) if deltas else None


def _logits(
    forward: Forward,
    cache: PromptCache,
    rope_deltas: mx.array | None,
    following: Sequence[Sequence[int]],
) -> mx.array:
    """Return the logits after the content of each row's cache and its following tokens, [rows,
    vocabulary]."""
    for tokens in zip(*following, strict=True):
        logits = forward.decode(mx.array(tokens)[:, None], cache, rope_deltas)[:, -1]
        mx.eval(logits)
    return logits.astype(mx.float32)
