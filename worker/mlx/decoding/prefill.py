"""One prompt in prefill: processed in chunks, then ready to decode.

Written for mlx-vlm 0.7.10: which arguments of a prompt run along its tokens, and where a model
keeps its rope deltas, is read from private functions of ``mlx_vlm.generate.ar``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_vlm.generate.ar import (
    PromptProcessingBatch,
    _is_sequence_aligned_prompt_kwarg,
    _slice_sequence_aligned_prompt_kwarg,
)
from mlx_vlm.generate.common import _chunked_prefill_enabled

from lmx.worker.engine import RowRequest, TokenScores
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.mlx.sampling.sampler import prompt_scores

# Logits of a scored prompt that are in memory at once: 128 MB in float32.
_SCORED_LOGITS: Final = 1 << 25


class PromptPrefill:
    """Takes a prompt's tokens through the model, but for the last by ``advance``; ``finish``
    takes the last. Engine thread.

    The last token goes alone, because models compute the logits of all tokens that they are
    given: of a chunk's nothing is evaluated. ``prompt_cache`` holds ``done_tokens`` tokens.
    ``arguments`` are those of the whole prompt (:meth:`Forward.embed`).
    """

    def __init__(
        self,
        forward: Forward,
        row: RowRequest,
        arguments: dict[str, Any],
        prompt_cache: PromptCache,
        cached_tokens: int,
    ) -> None:
        self.row = row
        self.prompt_cache = prompt_cache
        self.cached_tokens = cached_tokens
        self.done_tokens = cached_tokens
        self.scores: list[TokenScores] = []
        self._forward = forward
        self._tokens = mx.array([row.prompt])
        self._aligned = {
            name: value
            for name, value in arguments.items()
            if isinstance(value, mx.array)
            and (
                name == "inputs_embeds"
                or _is_sequence_aligned_prompt_kwarg(name, value, len(row.prompt))
            )
        }
        self._whole = {
            name: value for name, value in arguments.items() if name not in self._aligned
        }
        self._chunked = _chunked_prefill_enabled(
            forward.language_model,
            input_ids=self._tokens,
            inputs_embeds=arguments["inputs_embeds"],
            prompt_cache=prompt_cache,
            prefill_kwargs=arguments,
        )

    @property
    def ready(self) -> bool:
        """Whether ``finish`` comes next: ``advance`` has nothing to do."""
        return not self._chunked or self.done_tokens >= len(self.row.prompt) - 1

    def advance(self, most_tokens: int, stops: Sequence[int]) -> int:
        """Process the next chunk, and return how many tokens it had.

        It ends at ``done_tokens`` in ``stops`` if it gets so far. Blocks until the work is
        done: a chunk that is only begun piles up in a later one, and nothing gets between.
        """
        begin = self.done_tokens
        end = min(begin + most_tokens, len(self.row.prompt) - 1)
        if self.row.prompt_logprobs:
            end = min(end, begin + self._scored_tokens)
        end = min([end, *(stop for stop in stops if stop > begin)])
        logits = self._run(begin, end, {"n_to_process": end - begin})
        if self.row.prompt_logprobs:
            self._score(logits, begin, end)
        mx.eval(cache_states(self.prompt_cache))
        self.done_tokens = end
        return end - begin

    def finish(self) -> mx.array:
        """Process what is left, and return the logits [1, vocabulary] of the first token to
        make; not evaluated."""
        begin, end = self.done_tokens, len(self.row.prompt)
        scored = self.row.prompt_logprobs and end - begin > 1
        logits = self._run(begin, end, {} if scored else {"logits_to_keep": 1})
        if scored:
            self._score(logits[:, :-1], begin, end - 1)
        self.done_tokens = end
        return logits[:, -1, :]

    def rope_deltas(self) -> mx.array | None:
        """Return what decoding gives to the model for this row, [1, 1]; after ``finish``."""
        deltas: mx.array | None = PromptProcessingBatch._capture_rope_deltas_from_prompt_kwargs(
            self._whole, self._forward.language_model, 1
        )
        return deltas

    @property
    def _scored_tokens(self) -> int:
        return max(1, _SCORED_LOGITS // self._forward.vocabulary_size)

    def _run(self, begin: int, end: int, options: dict[str, int]) -> mx.array:
        part = {name: _slice_part(name, value, begin, end) for name, value in self._aligned.items()}
        return self._forward.prompt(
            self._tokens[:, begin:end], self.prompt_cache, self._whole | part | options
        )

    def _score(self, logits: mx.array, begin: int, end: int) -> None:
        following = mx.array(list(self.row.prompt[begin + 1 : end + 1]))
        self.scores += prompt_scores(logits[0], following, self.row.top_logprobs or 0)


def _slice_part(name: str, value: mx.array, begin: int, end: int) -> mx.array:
    if name == "inputs_embeds":
        return value[:, begin:end]
    part: mx.array = _slice_sequence_aligned_prompt_kwarg(name, value, start=begin, stop=end)
    return part
