"""Removes tokens from a prompt cache again: the guesses that turned out wrong.

Written for mlx-vlm 0.7.10, whose cache transactions do it for attention, for sliding windows, and
for those recurrent models that record their states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import mlx.core as mx
import structlog
from mlx_vlm.models.cache import BatchKVCache
from mlx_vlm.speculative.cache_state import SpeculativeCacheTransaction, start_speculative_cache

from lmx.worker.engine import RowRequest, RowSampling
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.model.forward import Forward, PromptCache

log = structlog.get_logger()

# Rows that keep different numbers of tokens are shifted apart; more padding is cut off.
_MOST_PADDING_TOKENS: Final = 256
# Rounding moves logits by much less of their spread, a state that is wrong by much more.
_TOLERANCE: Final = 0.05


class Rollback:
    """One forward pass over several tokens, of which each row keeps some of the first.

    It must begin before the forward pass, which must not run without it if ``keep`` may keep fewer
    than all tokens.
    """

    def __init__(self, prompt_cache: PromptCache, tokens: int) -> None:
        self._cache = prompt_cache
        self._transaction: SpeculativeCacheTransaction = start_speculative_cache(
            prompt_cache, tokens
        )

    def keep(self, kept_tokens: Sequence[int]) -> None:
        """Keep this many tokens of each row."""
        self._transaction.commit(kept_tokens)
        if len(set(kept_tokens)) > 1:
            _cut_padding(self._cache, len(kept_tokens))


def fits_rows(prompt_cache: PromptCache, rows: int) -> bool:
    """Return whether the rows of this batch may keep different numbers of tokens: a single
    row, or plain attention in all layers."""
    return rows == 1 or all(type(layer) is BatchKVCache for layer in prompt_cache)


def can_roll_back(forward: Forward) -> bool:
    """Try whether this model goes on after a rollback as if nothing had happened.

    There is no other way to know this: some architectures with a recurrent state record it, some
    don't. If it does not work, the reason is logged.
    """
    straight = _after_two(forward, None)
    try:
        back = _after_two(forward, [3, 4])
    except (AttributeError, RuntimeError, ValueError) as error:
        log.info("speculation.no_rollback", reason=str(error))
        return False
    spread = mx.linalg.norm(straight - mx.mean(straight))
    off = cast(float, (mx.linalg.norm(back - straight) / spread).item())
    if not off <= _TOLERANCE:
        log.info("speculation.no_rollback", reason="the state differs afterwards", off=off)
    return off <= _TOLERANCE


def _after_two(forward: Forward, wrong: Sequence[int] | None) -> mx.array:
    """Return the logits after a prompt and two more tokens. Between those two, the model takes
    ``wrong`` tokens, which are rolled back."""
    prompt, first, second = [1, 2, 3, 4, 5, 6, 7, 8], 1, 2
    row = RowRequest(0, prompt, 1, RowSampling(0.0))
    prefill = PromptPrefill(forward, row, forward.new_cache(), 0)
    prefill.finish()
    cache, deltas = prefill.prompt_cache, prefill.rope_deltas()
    if wrong is None:
        forward.decode(mx.array([[first]]), cache, deltas)
    else:
        rollback = Rollback(cache, 1 + len(wrong))
        forward.decode(mx.array([[first, *wrong]]), cache, deltas)
        rollback.keep([1])
    logits = forward.decode(mx.array([[second]]), cache, deltas)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return logits


def _cut_padding(prompt_cache: PromptCache, rows: int) -> None:
    if int(prompt_cache[0].left_padding.min().item()) > _MOST_PADDING_TOKENS:
        for layer in prompt_cache:
            layer.filter(mx.arange(rows))
