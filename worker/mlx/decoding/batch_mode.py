"""Finds out by trying whether a model is right if rows of different lengths decode together, or at
least in turns."""

import copy
import functools
import statistics
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

import mlx.core as mx
import structlog

from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.model.batch_slots import join
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states, logit_difference
from lmx.worker.scheduling.engine_errors import UNFIT, is_device_failure

log = structlog.get_logger()

# The lengths differ enough to show a fault: positions that are off by a few tokens change little.
_PROMPTS: Final = (list(range(1, 65)), [66, 67, 68, 69])
_FOLLOWING: Final = ((70, 71), (72, 73))
_SHIFTS: Final = (0, 100, 200)
"""What is added to each token of the further trials on a GPU."""
# A share of the spread of a row's logits. Rounding moves them by much less; padding that is not
# masked moved them by 0.2 to 4 in the models that were tried.
_TOLERANCE: Final = 0.1
_GPU_TOLERANCE: Final = 0.25
"""A GPU computes one row by other kernels than two, in 16 bits, and a router of experts that is
near a tie then takes another one."""

_MIXES_ROWS: Final = frozenset({"minimax_m3", "minimax_m3_vl", "phi3small"})
"""Types whose rows are wrong together, but only behind some thousand tokens: their attention reads
blocks of keys that are counted from the beginning of a batch, and not of each row."""


class Prefilled(NamedTuple):
    """The cache and the rope deltas of a prompt, or of several in a batch."""

    cache: PromptCache
    rope_deltas: mx.array | None


class BatchMode(Enum):
    """Which rows of a model run at the same time."""

    BATCHED = auto()
    """Rows of similar length decode in one forward pass."""
    SERIAL = auto()
    """Each row decodes in forward passes of its own, a token at a time, and prompts are read
    between them."""
    DISABLED = auto()
    """A row begins when the one before has ended."""


def can_batch(forward: Forward) -> bool:
    """Try two rows alone and together. If it does not work, the reason is logged.

    In mlx-vlm 0.7.10 some architectures can't batch, among them gemma2, whose attention adds the
    mask of a batch to scores of one more dimension, and internlm3, whose rope takes one offset.
    """
    model_type = str(getattr(getattr(forward.model, "config", None), "model_type", ""))
    if model_type in _MIXES_ROWS:
        reason = f"longer rows of {model_type} are wrong together"
        log.warning("batching.probe_failed", reason=reason)
        return False
    tolerance = _GPU_TOLERANCE if on_gpu() else _TOLERANCE
    try:
        # A GPU's rounding may change much for one pair of prompts, and a fault does for each.
        tried = [_off(forward, shift) for shift in (_SHIFTS if on_gpu() else _SHIFTS[:1])]
    except _Unfit as error:
        log.warning("batching.probe_failed", reason=str(error))
        return False
    off = statistics.median(tried)
    if not off <= tolerance:
        log.warning("batching.probe_failed", off=off, tried=tried)
        return False
    log.info("batching.probed", off=off)
    return True


def can_run_serially(forward: Forward) -> bool:
    """Try two rows alone and with steps that take turns, for a model that can't batch. It does not
    work if the model keeps something of the row that it has seen last. What is found is logged."""
    alone = [
        _logits(forward, *_finished(_half_read(forward, prompt)), [tokens])
        for prompt, tokens in zip(_PROMPTS, _FOLLOWING, strict=True)
    ]
    first = _half_read(forward, _PROMPTS[0])
    second = _finished(_half_read(forward, _PROMPTS[1]))
    rows = [_finished(first), second]
    for place in range(len(_FOLLOWING[0])):
        in_turns = [
            _logits(forward, *row, [tokens[place : place + 1]])
            for row, tokens in zip(rows, _FOLLOWING, strict=True)
        ]
    off = logit_difference(mx.concatenate(in_turns), mx.concatenate(alone))
    log.info("batching.serial_probed", off=off)
    return off <= _TOLERANCE


class _Unfit(Exception):
    """Rows can't decode together at all."""


def _off(forward: Forward, shift: int) -> float:
    """Return by how much the logits of two rows differ if they decode together, as a share of their
    spread. ``shift`` is added to each token. Raises :class:`_Unfit`."""

    def moved(tokens: Sequence[int]) -> list[int]:
        return [(token + shift) % forward.vocabulary_size for token in tokens]

    # This is done once for both: it is most of the work, and every load waits for it.
    rows = [_finished(_begun(forward, moved(prompt))) for prompt in _PROMPTS]
    following = [moved(tokens) for tokens in _FOLLOWING]
    alone = [
        _logits(forward, copy.deepcopy(cache), deltas, [tokens])
        for (cache, deltas), tokens in zip(rows, following, strict=True)
    ]
    try:
        together = _logits(forward, *joined(rows), following)
    except UNFIT as error:
        if is_device_failure(error):
            raise
        raise _Unfit(str(error)) from error
    return logit_difference(together, mx.concatenate(alone))


def _begun(forward: Forward, prompt: Sequence[int]) -> PromptPrefill:
    row = SequenceRequest(0, prompt, 1, SequenceSampling(0.0))
    return PromptPrefill(forward, row, forward.new_cache(), 0)


def _half_read(forward: Forward, prompt: Sequence[int]) -> PromptPrefill:
    prefill = _begun(forward, prompt)
    if not prefill.ready:
        prefill.advance(len(prompt) // 2, ())
    return prefill


def _finished(prefill: PromptPrefill) -> Prefilled:
    while not prefill.ready:
        prefill.advance(len(prefill.row.prompt), ())
    mx.eval(prefill.finish(), cache_states(prefill.prompt_cache))
    return Prefilled(prefill.prompt_cache, prefill.rope_deltas())


def joined(rows: Sequence[Prefilled]) -> Prefilled:
    """Return a batch of single rows. It uses up their caches."""
    cache = functools.reduce(join, (row.cache for row in rows))
    deltas = [row.rope_deltas for row in rows if row.rope_deltas is not None]
    return Prefilled(cache, mx.concatenate(deltas) if deltas else None)


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
