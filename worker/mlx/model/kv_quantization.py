"""Finds out by trying how a model can read quantized keys and values.

Its attention may multiply with quantized numbers; or take them only when they are expanded, as that
with sinks (gpt-oss), with logits that are capped or with latent keys; or look into its caches by
itself, so that it can't be served with quantized ones.
"""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import structlog
from mlx_vlm.models.cache import KVCache, RotatingKVCache

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.worker.mlx.memory.kv import quantization_group
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states, logit_difference
from lmx.worker.mlx.model.quantized_cache import KvQuantization, Packing, leaves
from lmx.worker.scheduling.engine_errors import UNFIT, is_device_failure

log = structlog.get_logger()

_PROMPT: Final = tuple(range(1, 49))
"""Enough queries for keys and values to be expanded."""

_FOLLOWING: Final = ((50, 51, 52), (53,), (54,))
"""Few enough for them not to be expanded."""

_TRIED_BITS: Final = 8
"""Whatever the configuration says: with 4 bits, rounding could not be distinguished from a
fault."""

_TOLERANCE: Final = 0.15
"""A share of the spread of the logits. Rounding to 8 bits moved them by up to 0.02 in the models
that were tried; an attention that takes other numbers than it should moves them by about 1."""

_INACCURATE: Final = 0.5
"""Beyond this share, rounding changes enough to be reported."""


def quantize_kv(forward: Forward, bits: int) -> None:
    """Let a model keep its keys and values in this many bits from now on.

    Raises :class:`OperationError` if it can't. That also holds if the bits are the default for all
    models: the memory that the worker has was planned for such caches.
    """
    groups = _groups(forward)
    kept = [leaf for leaf in leaves(forward.new_cache()) if hasattr(leaf, "keys")]
    if kept and all(type(leaf) is RotatingKVCache for leaf in kept):
        # They are planned as they are, and hold no more than their windows.
        log.info("kv_cache.plain", reason="its only keys and values are those of windows")
        return
    if not any(groups):
        raise _refused(bits, "it has no cache of keys and values whose widths allow it")
    plain = _logits(forward)
    reasons = []
    for expanded in (False, True):
        forward.kv_quantization = _quantization(groups, _TRIED_BITS, expanded=expanded)
        try:
            off = logit_difference(_logits(forward), plain)
        except UNFIT as error:
            if is_device_failure(error):
                raise
            reasons.append(str(error) or type(error).__name__)
            continue
        if off <= _TOLERANCE:
            forward.kv_quantization = _quantization(groups, bits, expanded=expanded)
            _report(bits, expanded, logit_difference(_logits(forward), plain))
            return
        reasons.append(f"its logits are off by {off:.2f} of their spread")
    forward.kv_quantization = None
    raise _refused(bits, reasons[-1])


def _groups(forward: Forward) -> Sequence[int | None]:
    """Return for each cache how many numbers are quantized together. None: it can't be quantized,
    or keeps more than keys and values."""
    cache = forward.new_cache()
    forward.decode(mx.array([[0]]), cache, None)  # Shapes are known without computing anything.
    return [
        quantization_group(leaf.keys.shape[-1], leaf.values.shape[-1])
        if type(leaf) is KVCache and leaf.keys is not None
        else None
        for leaf in leaves(cache)
    ]


def _quantization(groups: Sequence[int | None], bits: int, *, expanded: bool) -> KvQuantization:
    return KvQuantization(
        tuple(None if group is None else Packing(bits, group, expanded) for group in groups)
    )


def _logits(forward: Forward) -> mx.array:
    """Return the logits at the end of a prompt and after each part of what follows it."""
    cache: PromptCache = forward.new_cache()
    prompt = mx.array([_PROMPT])
    found = [forward.prompt(prompt, cache, forward.embed(prompt))[:, -1]]
    mx.eval(found, cache_states(cache))
    for tokens in _FOLLOWING:
        found.append(forward.decode(mx.array([tokens]), cache, None)[:, -1])
        mx.eval(found, cache_states(cache))
    return mx.concatenate(found).astype(mx.float32)


def _report(bits: int, expanded: bool, off: float) -> None:
    log.info("kv_cache.quantized", bits=bits, expanded_to_read=expanded, off=round(off, 3))
    if not off <= _INACCURATE:
        log.warning(
            "kv_quantization.inaccurate",
            bits=bits,
            off=round(off, 3),
            advice="this model's answers change much with so few bits: use kv_bits 8 or none",
        )


def _refused(bits: int, reason: str) -> OperationError:
    return OperationError(
        ErrorCode.CONFIG_INVALID,
        f"This model can't be served with kv_bits {bits} ({reason}): set kv_bits to none for it, "
        "also where memory.kv_bits is what sets it.",
        param="kv_bits",
    )
