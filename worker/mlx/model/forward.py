"""A loaded model as its callers here see it: tokens and caches in, logits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_vlm.models.cache import make_prompt_cache

PromptCache = list[Any]
"""One entry for each layer: mlx-vlm's caches, of a single row or of a batch."""


class Forward:
    """Runs the language part of a model. Everything is lazy; engine thread.

    ``rope_deltas`` [rows, 1] tell a model with three-dimensional positions how far those of
    each row are from its token count; None for every other model. ``vocabulary_size`` is that
    of the logits, which is more than the tokenizer's in some models.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.language_model = model.language_model
        # Shapes are known without running anything.
        probe = self.decode(mx.array([[0]]), self.new_cache(), None)
        self.vocabulary_size = int(probe.shape[-1])

    def new_cache(self) -> PromptCache:
        """Return an empty cache for one row."""
        cache: PromptCache = make_prompt_cache(self.language_model)
        return cache

    def embed(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the arguments that a forward over a whole prompt takes: ``inputs_embeds``, and
        for some models positions and more."""
        features = self.model.get_input_embeddings(mx.array([tokens]))
        return {name: value for name, value in features.to_dict().items() if value is not None}

    def prompt(
        self, tokens: mx.array, cache: PromptCache, arguments: Mapping[str, Any]
    ) -> mx.array:
        """Return the logits of a part of a prompt; [1, tokens, vocabulary], or of the last ones
        alone where the arguments say so and the model can."""
        return _logits(self.language_model(tokens, cache=cache, **arguments))

    def decode(
        self, tokens: mx.array, cache: PromptCache, rope_deltas: mx.array | None
    ) -> mx.array:
        """Return the logits after each of ``tokens`` [rows, tokens]."""
        if rope_deltas is None:
            return _logits(self.language_model(tokens, cache=cache))
        return _logits(self.language_model(tokens, cache=cache, rope_deltas=rope_deltas))


def cache_states(cache: PromptCache) -> list[Any]:
    """Return the arrays that a cache holds, to be evaluated."""
    states = []
    for layer in cache:
        try:
            states.append(layer.state)
        except (AttributeError, TypeError):
            continue  # A cache that holds nothing yet; mlx-vlm passes over it in the same way.
    return states


def _logits(output: Any) -> mx.array:
    logits: mx.array = output.logits if hasattr(output, "logits") else output
    return logits
