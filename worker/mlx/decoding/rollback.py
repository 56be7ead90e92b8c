"""Removes tokens from a prompt cache again: the drafts that turned out wrong.

Written for mlx-vlm 0.7.10, whose cache transactions do it for attention, for sliding windows, and
for those recurrent models that record their states. The states of others are kept from before.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import mlx.core as mx
import structlog
from mlx_vlm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    KVCache,
    RotatingKVCache,
)
from mlx_vlm.speculative.cache_state import iter_leaf_caches, start_speculative_cache

from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.mlx.decoding.batch_mode import Prefilled, joined
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.model.batch_slots import MOST_PADDING_TOKENS, SlottedKVCache
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states, logit_difference
from lmx.worker.mlx.model.quantized_cache import BatchQuantizedCache, QuantizedCache
from lmx.worker.scheduling.engine_errors import UNFIT, is_device_failure

log = structlog.get_logger()

_CUT: Final = (BatchKVCache, SlottedKVCache, BatchQuantizedCache)
# Rounding moves logits by much less of their spread, a state that is wrong by much more.
_TOLERANCE: Final = 0.05
# The rounding in a batch is another than that of a row alone.
_TOLERANCE_TOGETHER: Final = 0.1

# What the trials feed.
_PROMPTS: Final = ([1, 2, 3, 4, 5, 6, 7, 8], [3, 1, 4])
_TAKEN: Final = (1, 5)
_WRONG: Final = (3, 4)
_NEXT: Final = 2
_WINDOW_TOKENS: Final = 6
"""So short that the window of the first prompt has slid, and that of the second has not."""


class Undo(Enum):
    """How wrong drafts are removed from a model's caches."""

    RECORDED = auto()
    """The caches know what each token has changed."""
    REPLAYED = auto()
    """A recurrent state becomes what it was before all of the tokens, and those that stay are
    decoded again."""


class Rollback:
    """One forward pass over several tokens, of which each row keeps some of the first.

    It must begin before the forward pass, which must not run without it if ``keep`` may keep fewer
    than all tokens.
    """

    def __init__(self, prompt_cache: PromptCache, tokens: int, undo: Undo) -> None:
        self._tokens = tokens
        put_windows_in_order(prompt_cache)
        layers: list[Any] = list(iter_leaf_caches(prompt_cache))
        # A state is never changed in place: the next one is another array.
        self._before = [
            (layer, list(layer.state), layer.left_padding, layer.lengths)
            for layer in layers
            if undo is Undo.REPLAYED and isinstance(layer, ArraysCache)
        ]
        kept = {id(layer) for layer, *_ in self._before}
        self._transaction = start_speculative_cache(
            [layer for layer in layers if id(layer) not in kept], tokens
        )

    def keep(
        self, kept_tokens: Sequence[int], replay: Callable[[int], object] | None = None
    ) -> None:
        """Keep this many tokens of each row. Where tokens are replayed, all rows must keep the same
        number, and ``replay`` decodes this many of the first ones again."""
        if not self._before or all(kept == self._tokens for kept in kept_tokens):
            self._transaction.commit(kept_tokens)
            return
        self._transaction.abort()
        for layer, state, left_padding, lengths in self._before:
            layer.state, layer.left_padding, layer.lengths = state, left_padding, lengths
        assert replay is not None
        (kept,) = set(kept_tokens)
        replay(kept)


def put_windows_in_order(prompt_cache: PromptCache) -> None:
    """Order the entries of windows by time. It must be called before a forward pass of a batch over
    several tokens of each row.

    The windows of a batch overwrite their oldest entry in place. mlx-vlm 0.7.10 makes the mask for
    several tokens as if none had been overwritten: it hides one token too many of a row that is
    shorter than its window. Without the mask for it, the pass itself would order the entries.
    """
    for layer in iter_leaf_caches(prompt_cache):
        if isinstance(layer, BatchRotatingKVCache):
            layer._temporal_order()


def cut_padding(prompt_cache: PromptCache, rows: int, longest_tokens: int) -> None:
    """Remove what no row of a batch uses, if it is more than a little: the longest row has this
    many tokens in the cache. Windows keep theirs until it slides out of them."""
    layers = [layer for layer in prompt_cache if type(layer) in _CUT]
    if layers and layers[0].size() - longest_tokens > MOST_PADDING_TOKENS:
        all_rows = mx.arange(rows)
        for layer in layers:
            layer.filter(all_rows)


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a model can do with several tokens of a row at once.

    There is no other way to know it than to try: some architectures with a recurrent state record
    it, some don't, and some take several tokens only as a prompt.
    """

    right: bool
    """Whether it is right after them."""
    alone: Undo | None = None
    """How some of them are removed again while a row is alone; None: they can't be."""
    together: Undo | None = None
    """The same for several rows."""
    apart: bool = False
    """Whether several rows may keep different numbers of tokens; otherwise all keep the same."""


def probe_multi_token(forward: Forward, *, drafts: bool) -> Blocks:
    """Return what works. The reason is logged where something doesn't. Without ``drafts``, it is
    not tried to remove the same number of tokens from all rows."""
    if (fault := _fault(forward, 1, _at_once)) is not None:
        log.info("decode.one_by_one", reason=fault)
        return Blocks(False)
    slides = any(
        isinstance(layer, RotatingKVCache) for layer in iter_leaf_caches(forward.new_cache())
    )
    apart = (
        all(
            type(layer) in (KVCache, QuantizedCache, RotatingKVCache)
            for layer in forward.new_cache()
        )
        and _fault(forward, 2, _at_once) is None
        and not (slides and _slips(forward, Undo.RECORDED, (2, 1)))
    )
    if not drafts:
        return Blocks(True, apart=apart)
    alone = _find_undo(forward, 1)
    together = None if alone is None else _find_undo(forward, 2)
    if together is not None and slides and not apart and _slips(forward, together, (2, 2)):
        together = None
    return Blocks(True, alone, together, apart)


def _find_undo(forward: Forward, rows: int) -> Undo | None:
    faults = {}
    for undo in Undo:
        fault = _fault(forward, rows, _Undone(undo))
        if fault is None:
            return undo
        faults[undo.name.lower()] = fault
    log.info("speculation.no_rollback", rows=rows, **faults)
    return None


_Decode = Callable[..., mx.array]
"""Decodes the same tokens in all rows."""
_Take = Callable[[_Decode, PromptCache, int], None]
"""Lets each of this many rows take two tokens, in its way."""


def _fault(forward: Forward, rows: int, take: _Take) -> str | None:
    """Return what goes wrong with ``take``; None: the logits after it are the same as after
    decoding one by one."""
    try:
        expected = _logits_after(forward, rows, _one_by_one)
        logits = _logits_after(forward, rows, take)
    except UNFIT as error:
        if is_device_failure(error):
            raise
        return str(error)
    off = logit_difference(logits.reshape(-1), expected.reshape(-1))
    return None if off <= _TOLERANCE else f"the state differs afterwards, by {off:.2g}"


def _logits_after(forward: Forward, rows: int, take: _Take) -> mx.array:
    batch = joined([_read(forward, prompt, forward.new_cache()) for prompt in _PROMPTS[:rows]])
    decode = _decoding(forward, batch, rows)
    take(decode, batch.cache, rows)
    return decode(_NEXT)[:, -1].astype(mx.float32)


def _read(forward: Forward, prompt: list[int], cache: PromptCache) -> Prefilled:
    prefill = PromptPrefill(forward, SequenceRequest(0, prompt, 1, SequenceSampling(0.0)), cache, 0)
    prefill.finish()
    mx.eval(cache_states(prefill.prompt_cache))
    return Prefilled(prefill.prompt_cache, prefill.rope_deltas())


def _decoding(forward: Forward, batch: Prefilled, rows: int) -> _Decode:
    def decode(*tokens: int) -> mx.array:
        logits = forward.decode(mx.array([tokens] * rows), batch.cache, batch.rope_deltas)
        if logits.shape[1] != len(tokens):
            raise ValueError(f"{len(tokens)} tokens have {logits.shape[1]} logits")
        mx.eval(logits, cache_states(batch.cache))
        return logits

    return decode


def _one_by_one(decode: _Decode, _: PromptCache, rows: int) -> None:
    for token in _TAKEN:
        decode(token)


def _at_once(decode: _Decode, _: PromptCache, rows: int) -> None:
    decode(*_TAKEN)


@dataclass(frozen=True, slots=True)
class _Undone:
    undo: Undo

    def __call__(self, decode: _Decode, cache: PromptCache, rows: int) -> None:
        rollback = Rollback(cache, len(_TAKEN) + len(_WRONG), self.undo)
        decode(*_TAKEN, *_WRONG)
        rollback.keep([len(_TAKEN)] * rows, lambda kept: decode(*_TAKEN[:kept]))


def _slips(forward: Forward, undo: Undo, kept: Sequence[int]) -> bool:
    """Return whether something goes wrong in a batch whose windows have slid, if each row keeps
    that many tokens: its logits differ from those of each row alone. The reason is logged.

    The windows are made short for it. A real one would need a long prompt to slide.
    """
    try:
        rows = []
        for prompt in _PROMPTS:
            cache = forward.new_cache()
            for layer in iter_leaf_caches(cache):
                if isinstance(layer, RotatingKVCache):
                    layer.max_size = _WINDOW_TOKENS
            rows.append(_read(forward, prompt, cache))
        alone = [
            _logits_on_the_way(forward, copy.deepcopy(row), undo, [tokens])
            for row, tokens in zip(rows, kept, strict=True)
        ]
        expected = mx.concatenate(alone)
        logits = _logits_on_the_way(forward, joined(rows), undo, kept)
    except UNFIT as error:
        if is_device_failure(error):
            raise
        log.info("decode.windows_one_by_one", kept=list(kept), reason=str(error))
        return True
    off = logit_difference(logits, expected)
    if not off <= _TOLERANCE_TOGETHER:
        log.info("decode.windows_one_by_one", kept=list(kept), off=off)
    return not off <= _TOLERANCE_TOGETHER


def _logits_on_the_way(
    forward: Forward, batch: Prefilled, undo: Undo, kept: Sequence[int]
) -> mx.array:
    """Return the logits [rows, tokens, vocabulary] of a block of which each row keeps that
    many tokens, of a token after it, which is written over the oldest one of each window, and of a
    block after that."""
    decode = _decoding(forward, batch, len(kept))
    rollback = Rollback(batch.cache, len(_TAKEN) + len(_WRONG), undo)
    found = [decode(*_TAKEN, *_WRONG)]
    rollback.keep(kept, lambda tokens: decode(*_TAKEN[:tokens]))
    found.append(decode(_NEXT))
    put_windows_in_order(batch.cache)
    found.append(decode(*_TAKEN))
    return mx.concatenate(found, axis=1).astype(mx.float32)
