"""Gemma 3n with its encoders, of which mlx-vlm's class makes two things wrong.

Written for mlx-vlm 0.7.10. Its embeddings of a prompt are not multiplied as the tokens of an answer
are (in transformers ``Gemma3nTextScaledWordEmbedding`` does it). And the layers that read the keys
of an earlier one turn their queries as if the tokens came after themselves, because that layer has
moved the cache on: a prompt in chunks would be another one than the whole prompt. mlx-lm's class,
which is of text alone, does both right.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from lmx.worker.mlx.module_calls import replace_methods

_MODULE: Final = "mlx_vlm.models.gemma3n.gemma3n"


def patch_gemma3n(model: Any) -> None:
    """Make a model right if it is a Gemma 3n of mlx-vlm's."""
    plain = type(model)
    if plain.__module__ != _MODULE:
        return

    def scaled(patched: Any, input_ids: mx.array, *args: Any, **kwargs: Any) -> Any:
        found = plain.get_input_embeddings(patched, input_ids, *args, **kwargs)
        is_text = (input_ids < patched.embed_vision.vocab_offset)[..., None]
        embeddings = found.inputs_embeds
        scale = patched.config.text_config.hidden_size**0.5
        found.inputs_embeds = mx.where(is_text, embeddings * scale, embeddings)
        return found

    replace_methods(model, get_input_embeddings=scaled)
    for layer in model.language_model.model.layers:
        if layer.self_attn.is_kv_shared_layer:
            _turn_where_they_are(layer.self_attn)


class _Before:
    """A cache as it was before the tokens of a pass were added, but with their keys in it."""

    def __init__(self, cache: Any, tokens: int) -> None:
        self._cache = cache
        self.offset = cache.offset - tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _turn_where_they_are(attention: Any) -> None:
    plain = type(attention)

    def call(patched: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        before = None if cache is None else _Before(cache, x.shape[1])
        found: mx.array = plain.__call__(patched, x, mask, before)
        return found

    replace_methods(attention, __call__=call)
