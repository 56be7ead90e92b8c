"""A loaded model as the worker uses it: tokens and caches in, logits out."""

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Self, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.models.cache import ChunkedKVCache, RotatingKVCache, make_prompt_cache
from mlx_vlm.speculative.cache_state import iter_leaf_caches

from lmx.worker.mlx.adapters.layers import ActiveAdapter
from lmx.worker.mlx.media.bidirectional_mask import needs_whole_prompt, patch_bidirectional_mask
from lmx.worker.mlx.media.blocks import BlockTap, Encoding
from lmx.worker.mlx.media.encoding import encode
from lmx.worker.mlx.media.spans import MediaSpan
from lmx.worker.mlx.model.hidden import HiddenTap
from lmx.worker.mlx.model.passes import note_pass
from lmx.worker.mlx.model.quantized_cache import KvQuantization

PromptCache = list[Any]
"""One entry for each layer: mlx-vlm's caches, of a single row or of a batch."""

EMBEDDINGS: Final = ("inputs_embeds", "per_layer_inputs")
"""The arguments of a prompt that are as wide as the model. Of a long prompt they take as much
memory as a part of its KV cache: 781 MiB for 100,000 tokens of an 8B model."""


class Forward:
    """Runs the language part of a model. Everything is lazy; engine thread.

    ``rope_deltas`` [rows, 1] say, for a model with three-dimensional positions, how far each row's
    positions are from its token count; None for every other model. ``vocabulary_size`` is the width
    of the logits, which is larger than the tokenizer's vocabulary in some models. ``adapter`` is
    the id of the adapter that is applied to the model; empty: none.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.language_model = model.language_model
        self.adapter = ""
        self.active = ActiveAdapter()
        """What the layers that adapters change look at. It is the same for all adapters."""
        self.kv_quantization: KvQuantization | None = None
        """How keys and values are stored. None: as the model computes them."""
        self.tap: HiddenTap | None = None
        """Where hidden states are captured, if somebody wants them."""
        self._blocks = BlockTap(model)
        self.atomic_media = patch_bidirectional_mask(self.language_model)
        """Whether the tokens of a picture must be processed in one forward pass."""
        self.atomic_prompts = needs_whole_prompt(model)
        """Whether those of a prompt must be."""
        # Shapes are known without computing anything.
        probe = self.decode(mx.array([[0]]), self.new_cache(), None)
        self.vocabulary_size = int(probe.shape[-1])
        self._embeds_parts = self._can_embed_parts()

    def with_adapter(self, adapter: str) -> Self:
        """Return the same model with an adapter applied."""
        if adapter == self.adapter:
            return self
        other = copy.copy(self)
        other.adapter = adapter
        return other

    def new_cache(self) -> PromptCache:
        """Return an empty cache for one row."""
        cache: PromptCache = make_prompt_cache(self.language_model)
        quantization = self.kv_quantization
        return cache if quantization is None else quantization.applied(cache)

    def embed(self, tokens: mx.array, **media: mx.array) -> dict[str, Any]:
        """Return the arguments for a forward pass over a whole prompt [1, tokens]:
        ``inputs_embeds``, and for some models positions and more. ``media`` is what the model's
        class takes of pictures and sounds.

        Some models keep the positions of the prompt that they embedded last, so this must be called
        again if another prompt was embedded meanwhile.
        """
        note_pass()
        self.active.adapter_id = self.adapter
        features = self.model.get_input_embeddings(tokens, **media)
        return {name: value for name, value in features.to_dict().items() if value is not None}

    def encode(self, span: MediaSpan, part_s: float) -> Encoding:
        """Begin to encode a picture, a sound or a video, in parts that seem to take ``part_s`` at
        most. Raises what :func:`lmx.worker.mlx.media.encoding.encode` raises."""
        note_pass()
        self.active.adapter_id = self.adapter
        with self._blocks.recording(part_s) as in_parts:
            return in_parts(encode(self.model, span))

    def embed_part(self, tokens: mx.array, begin: int, end: int) -> dict[str, Any]:
        """Return the arguments of a whole prompt, but with the embeddings of only a part.

        The embeddings then don't have the length of the whole prompt, and nothing of that length is
        computed.
        """
        if not self._embeds_parts or end - begin == tokens.shape[1]:
            whole = self.embed(tokens)
            parts = {name: whole[name][:, begin:end] for name in EMBEDDINGS if name in whole}
            return whole | parts
        part = self.embed(tokens[:, begin:end])
        return self.embed(tokens) | {name: part[name] for name in EMBEDDINGS if name in part}

    def prompt(
        self, tokens: mx.array, cache: PromptCache, arguments: Mapping[str, Any]
    ) -> mx.array:
        """Return the logits of a part of a prompt, [1, tokens, vocabulary]; or only the last ones,
        if the arguments say so and the model can do that."""
        note_pass()
        self.active.adapter_id = self.adapter
        return _logits(self.language_model(tokens, cache=cache, **arguments))

    def decode(
        self, tokens: mx.array, cache: PromptCache, rope_deltas: mx.array | None
    ) -> mx.array:
        """Return the logits after each of ``tokens`` [rows, tokens]."""
        note_pass()
        self.active.adapter_id = self.adapter
        arguments = {} if rope_deltas is None else {"rope_deltas": rope_deltas}
        return _logits(self.language_model(tokens, cache=cache, **arguments))

    def capture_hidden(self, run: Callable[[], mx.array]) -> tuple[mx.array, mx.array]:
        """Return what ``run`` returns, and the hidden states [rows, tokens, width] of the forward
        pass that it makes. There must be a tap."""
        assert self.tap is not None
        with self.tap.capturing() as captured:
            logits = run()
            return logits, captured()

    @cached_property
    def weight_bytes(self) -> int:
        """How much memory the weights of the language part take."""
        return sum(array.nbytes for _, array in tree_flatten(self.language_model.parameters()))

    def _can_embed_parts(self) -> bool:
        """Try whether a token's embedding is the same in a part of a prompt."""
        tokens = mx.array([[1, 2, 3, 4]])
        whole, part = self.embed(tokens), self.embed(tokens[:, 2:])
        return all(
            name not in whole or mx.array_equal(whole[name][:, 2:], part[name]).item()
            for name in EMBEDDINGS
        )


def cache_states(cache: PromptCache) -> list[Any]:
    """Return the arrays that a cache holds, to be evaluated."""
    states = []
    for layer in cache:
        try:
            states.append(layer.state)
        except (AttributeError, TypeError):
            continue  # A cache that holds nothing yet; mlx-vlm passes over it in the same way.
    return states


def trim_windows(cache: PromptCache) -> None:
    """Let the windows of a row hold no more than they will show to its next token, lazily. After a
    part of a prompt they hold all of it besides, until the row's next forward pass: that may be
    long after other rows' prompts have been read."""
    for leaf in iter_leaf_caches(cache):
        if type(leaf) not in (ChunkedKVCache, RotatingKVCache) or leaf.empty():
            continue
        if type(leaf) is ChunkedKVCache:
            leaf.maybe_trim_front()
        elif not leaf.keep and leaf.keys.shape[2] > leaf.max_size:
            # After several tokens they are in the order of time.
            leaf.keys = leaf.keys[..., -leaf.max_size :, :]
            leaf.values = leaf.values[..., -leaf.max_size :, :]
            leaf.meta_state = (*leaf.meta_state[:-1], str(leaf.max_size))
        # A view would keep all of it.
        leaf.keys, leaf.values = mx.contiguous(leaf.keys), mx.contiguous(leaf.values)


def logit_difference(logits: mx.array, right: mx.array) -> float:
    """Return by how much logits [..., vocabulary] differ at most, as a share of the spread of those
    that are ``right``. Tokens that both forbid, whose logits are infinite, don't count."""
    forbidden = mx.isinf(right) & (logits == right)
    logits, right = mx.where(forbidden, 0, logits), mx.where(forbidden, 0, right)
    spread = mx.linalg.norm(right - mx.mean(right, axis=-1, keepdims=True), axis=-1)
    return cast(float, mx.max(mx.linalg.norm(logits - right, axis=-1) / spread).item())


def _logits(output: Any) -> mx.array:
    logits: mx.array = output.logits if hasattr(output, "logits") else output
    return logits
