"""One prompt in prefill: processed in chunks, between those of other prompts, then ready to decode.

MLX computes nothing before it is evaluated. So a chunk is recorded whole, and then computed layer
by layer: it can pause between any two layers, and what is recorded does not change meanwhile.

Written for mlx-vlm 0.7.10: which arguments of a prompt run along its tokens, and where a model
keeps its rope deltas, is read from private functions of ``mlx_vlm.generate.ar``.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.generate.ar import (
    PromptProcessingBatch,
    _is_sequence_aligned_prompt_kwarg,
    _slice_sequence_aligned_prompt_kwarg,
)
from mlx_vlm.generate.common import _chunked_prefill_enabled

from lmx.worker.engine.values import SequenceRequest, TokenScores
from lmx.worker.mlx.decoding.pace import layers_at_once
from lmx.worker.mlx.decoding.prefill_media import PrefillMedia
from lmx.worker.mlx.media.spans import media_of
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states, trim_windows
from lmx.worker.mlx.model.hidden import HiddenStates
from lmx.worker.mlx.sampling.sampler import prompt_scores

# Logits of a scored prompt that are in memory at once: 128 MB in float32.
_SCORED_LOGITS: Final = 1 << 25


class PrefillChunk:
    """The tokens of a prompt that are on their way through the layers. Engine thread."""

    def __init__(self, end: int, tokens: int, layers: Sequence[Any], logits: mx.array) -> None:
        """``layers`` are what each layer's cache holds after the chunk, not evaluated."""
        self.end = end
        """How many tokens of the prompt are done when it is."""
        self.tokens = tokens
        """How many tokens it has."""
        self.logits = logits
        self.most_tokens = tokens
        """How many tokens it was allowed."""
        self.decoding = False
        """Whether rows decoded when its length was chosen."""
        self.yields = False
        """Whether its length was chosen as that of the background's chunks is."""
        self.took_s = 0.0
        """How long the steps took in which it was computed."""
        self.layer_s = 0.0
        """How long the longest of its layers took."""
        self._left = deque(layers)
        self._layers = len(layers)
        self._at_once = 1

    @property
    def done_tokens(self) -> int:
        """The part of the work that is done, as a number of tokens."""
        if not self._left:
            return self.tokens
        return self.tokens * (self._layers - len(self._left)) // self._layers

    def compute(self, pauses: Callable[[float, float], bool]) -> bool:
        """Compute the next layers, one or more; return whether all are done.

        ``pauses`` is asked between layers: it takes how long this call has computed, and how long
        the next layers seem to take. Blocks until the work is done.
        """
        began_s = last_s = time.perf_counter()
        while self._left:
            # What was computed is not referenced any more: the next chunk writes to it in place.
            count = min(self._at_once, len(self._left))
            mx.eval([self._left.popleft() for _ in range(count)])
            now_s = time.perf_counter()
            if len(self._left) + count < self._layers:
                # The first cache needs what is before the first layer, which says nothing of one.
                self._at_once = layers_at_once(count, now_s - last_s)
            self.layer_s = max(self.layer_s, (now_s - last_s) / count)
            next_s = (now_s - last_s) * self._at_once / count
            last_s = now_s
            if self._left and pauses(now_s - began_s, next_s):
                return False
        return True


class PromptPrefill:
    """Takes a prompt's tokens through the model, all but the last, by ``advance``.

    The last token is the first that decodes: ``prompt_cache`` then holds all tokens except that
    one. If its logits are wanted at once, or if the model can't take a prompt in chunks, ``finish``
    processes the rest. Engine thread.
    """

    def __init__(
        self,
        forward: Forward,
        row: SequenceRequest,
        prompt_cache: PromptCache,
        cached_tokens: int,
        observed_tokens: int = 0,
    ) -> None:
        self.row = row
        self.prompt_cache = prompt_cache
        """Holds the first ``done_tokens`` tokens, if no chunk is being computed."""
        self.cached_tokens = cached_tokens
        """How many of them were found, and not computed."""
        self.done_tokens = cached_tokens
        self.chunk: PrefillChunk | None = None
        """What is being computed. ``prompt_cache`` knows already that it will hold it."""
        self.scores: list[TokenScores] = []
        self._observed_tokens = observed_tokens
        self._observed: list[mx.array] = []
        self._forward = forward
        self._tokens = mx.array([row.prompt])
        media = media_of(row)
        self.media = PrefillMedia(forward, self._tokens, media) if media else None
        """Its pictures, sounds and videos; None: it has none."""
        self.atomic_tokens = len(row.prompt) - row.generated_tokens if forward.atomic_prompts else 0
        """How many of the first tokens must be processed at once. Those of an answer, with which a
        row comes back, see none behind them: they follow one by one."""
        arguments = forward.embed(self._tokens)
        self.chunked: bool = (
            self.atomic_tokens < len(row.prompt)
            if forward.atomic_prompts
            else _chunked_prefill_enabled(
                forward.language_model if media is None else forward.model,
                input_ids=self._tokens,
                inputs_embeds=arguments["inputs_embeds"],
                prompt_cache=prompt_cache,
                prefill_kwargs=arguments,
            )
        )
        """Whether the model may be given the prompt in chunks."""

    @property
    def keys(self) -> Sequence[int] | npt.NDArray[np.int32]:
        """The tokens that the cache holds, as the prefix cache knows them."""
        tokens = self.row.prompt[: self.done_tokens]
        media = media_of(self.row)
        return tokens if media is None else media.keyed(tokens)

    @property
    def ready(self) -> bool:
        """Whether ``advance`` has nothing to do."""
        return not self.chunked or self.left_tokens == 0

    @property
    def hidden(self) -> HiddenStates | None:
        """The hidden states of the last ``observed_tokens`` tokens that were processed, or of fewer
        if the others were found. None: there are none."""
        if not self._observed:
            return None
        states = mx.concatenate(self._observed, axis=1)[:, -self._observed_tokens :]
        return HiddenStates(self.done_tokens - states.shape[1], states)

    @property
    def left_tokens(self) -> int:
        """How many tokens before the last one are still to be processed."""
        return max(0, len(self.row.prompt) - 1 - self.done_tokens)

    def advance(self, most_tokens: int, stops: Sequence[int]) -> int:
        """Process the next chunk, and return how many tokens it had. It ends as :meth:`begin` says.

        Blocks until the work is done: a chunk that is only begun would add to a later one, and no
        other work could come between.
        """
        tokens = self.begin(most_tokens, stops).tokens
        self.complete()
        return tokens

    def complete(self) -> None:
        """Compute the rest of the chunk that is begun, if there is one."""
        chunk = self.chunk
        if chunk is None:
            return
        if self.row.prompt_logprobs is not None:
            self._score(chunk.logits, chunk.end - chunk.tokens, chunk.end)
        mx.eval(cache_states(self.prompt_cache), self._observed)
        self.done_tokens = chunk.end
        self.chunk = None

    def begin(self, most_tokens: int, stops: Sequence[int]) -> PrefillChunk:
        """Begin the next chunk: :meth:`PrefillChunk.compute` computes it, then :meth:`complete`
        ends it. It ends at the next ``done_tokens`` of ``stops`` if it reaches one."""
        assert self.chunk is None
        begin = self.done_tokens
        end = min(begin + most_tokens, len(self.row.prompt) - 1)
        if self.row.prompt_logprobs is not None:
            end = min(end, begin + self._scored_tokens)
        end = min([end, *(stop for stop in stops if stop > begin)])
        if self.atomic_tokens:
            end = max(self.atomic_tokens, begin + 1)
        elif self.media is not None:
            end = self.media.atomic_end(begin, end)
        logits = self._run(begin, end, {"n_to_process": end - begin})
        layers = cache_states(self.prompt_cache)
        self.chunk = PrefillChunk(end, end - begin, layers, logits)
        return self.chunk

    def finish(self) -> mx.array:
        """Process the rest, and return the logits [1, vocabulary] of the first token to make; not
        evaluated."""
        begin, end = self.done_tokens, len(self.row.prompt)
        scored = self.row.prompt_logprobs is not None and end - begin > 1
        logits = self._run(begin, end, {} if scored else {"logits_to_keep": 1})
        if scored:
            self._score(logits[:, :-1], begin, end - 1)
        self.done_tokens = end
        return logits[:, -1, :]

    def rope_deltas(self) -> mx.array | None:
        """Return the rope deltas with which the model decodes this row, [1, 1]."""
        if self.media is not None and self.media.rope_deltas is not None:
            return self.media.rope_deltas
        arguments = self._forward.embed(self._tokens)
        deltas: mx.array | None = PromptProcessingBatch._capture_rope_deltas_from_prompt_kwargs(
            arguments, self._forward.language_model, 1
        )
        return deltas

    @property
    def _scored_tokens(self) -> int:
        return max(1, _SCORED_LOGITS // self._forward.vocabulary_size)

    def _run(self, begin: int, end: int, options: dict[str, int]) -> mx.array:
        length = len(self.row.prompt)
        arguments = self._arguments(begin, end)

        def run() -> mx.array:
            logits = self._forward.prompt(
                self._tokens[:, begin:end], self.prompt_cache, arguments | options
            )
            trim_windows(self.prompt_cache)
            return logits

        if end <= length - 1 - self._observed_tokens or not self._observed_tokens:
            return run()
        logits, hidden = self._forward.capture_hidden(run)
        self._observed.append(hidden)
        return logits

    def _arguments(self, begin: int, end: int) -> dict[str, Any]:
        if self.media is not None:
            return self.media.arguments(begin, end)
        arguments = self._forward.embed_part(self._tokens, begin, end)
        for name, value in arguments.items():
            if isinstance(value, mx.array) and _is_sequence_aligned_prompt_kwarg(
                name, value, len(self.row.prompt)
            ):
                arguments[name] = _slice_sequence_aligned_prompt_kwarg(
                    name, value, start=begin, stop=end
                )
        return arguments

    def _score(self, logits: mx.array, begin: int, end: int) -> None:
        following = mx.array(list(self.row.prompt[begin + 1 : end + 1]))
        self.scores += prompt_scores(logits[0], following, self.row.prompt_logprobs or 0)
