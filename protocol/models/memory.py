"""The memory that a model's worker takes, as its engine estimates it, and the arithmetic with it.
This module is pure.

The engine (:mod:`lmx.protocol.models.engine`) knows how much its caches and its computing take, and
expresses it in these figures. The supervisor plans with the figures, and does not know where they
come from. The worker counts the caches of its rows with the same figures.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers whose caches are alike."""

    layers: int
    """The number of these layers."""
    token_bytes: int
    """What each token of a sequence takes in each of these layers."""
    window_tokens: int | None = None
    """A layer holds at most this many tokens. None: all of them."""
    fixed_bytes: int = 0
    """What each sequence takes in each of these layers, whatever its length: recurrent state."""
    step_tokens: int = 1
    """The cache grows by this many tokens at a time."""
    read_bytes: int = 0
    """What each token takes besides while the layer is computed, because its quantized cache is
    expanded for that. At any time this is so of one layer."""


@dataclass(frozen=True, slots=True)
class Activations:
    """What intermediate results take. At any time there are those of one chunk in one layer."""

    chunk_tokens: int
    """This many tokens of a prompt, or of a text, are computed at a time."""
    whole_texts: bool
    """Whether a longer text is computed in one chunk all the same."""
    token_bytes: int
    """What each token of a chunk takes."""
    pair_bytes: int
    """What each token of a chunk takes with each token before it; 0 if attention is one kernel."""
    depth_tokens: int
    """After this many tokens chunks are half as long, and so on, so that ``pair_bytes`` count for
    fewer than all of them. It is above 0."""
    row_bytes: int
    """What each sequence takes for which a token is drawn."""


@dataclass(frozen=True, slots=True)
class MediaMemory:
    """What a model's eyes and ears take. A picture here is one of 1024 x 768 pixels."""

    weights_bytes: int
    """Their weights, a part of :attr:`MemoryModel.weights_bytes`."""
    image_tokens: int
    """How many tokens of the context a picture takes, about; 0 for a model that sees nothing."""
    image_bytes: int
    """What computing what is seen in a picture takes, and keeping it until the prompt is
    computed."""


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """What the worker of one model takes, and for what. All but the weights is an estimate."""

    weights_bytes: int
    """All tensors as they will be in memory."""
    process_bytes: int
    """The program with its libraries and the tokenizer, once the model is loaded."""
    buffers_bytes: int
    """The most freed memory that the engine keeps for reuse."""
    kv_layers: tuple[KvLayers, ...]
    """What each sequence keeps. It is empty for a model that does not generate, and for one about
    which the engine does not know it."""
    activations: Activations
    kv_layers_8bit: tuple[KvLayers, ...] = ()
    """What each sequence keeps if its keys and values are quantized to 8 bits. It is empty for an
    engine that can't do that."""
    kv_layers_4bit: tuple[KvLayers, ...] = ()
    """The same with 4 bits."""
    media: MediaMemory | None = None
    """What seeing and hearing take; None for a model that takes text only."""
    divided_bytes: int = 0
    """The part of the weights of which each rank has its share, if the model is divided among
    several. Each of them has all the rest."""

    def kv_layers_with(self, bits: int | None) -> tuple[KvLayers, ...]:
        """Return what each sequence keeps if its keys and values have this many bits. None: they
        are not quantized."""
        quantized = {4: self.kv_layers_4bit, 8: self.kv_layers_8bit}
        return (quantized.get(bits, ()) if bits is not None else ()) or self.kv_layers


def kv_bytes(layers: Iterable[KvLayers], tokens: int) -> int:
    """Return what one sequence of ``tokens`` takes in all layers."""
    return sum(
        part.layers * (part.token_bytes * _held_tokens(part, tokens) + part.fixed_bytes)
        for part in layers
    )


def activation_bytes(
    activations: Activations, context_tokens: int, rows: int, layers: Iterable[KvLayers]
) -> int:
    """Return the most that intermediate results take: for one chunk of a prompt of
    ``context_tokens``, and for drawing the tokens of ``rows``.

    Layers with windows hold one more chunk while a prompt is computed. Of quantized layers, one is
    expanded at a time: for all rows, because some models read them so in each step.
    """
    at_a_time = max if activations.whole_texts else min
    chunk_tokens = at_a_time(activations.chunk_tokens, context_tokens)
    depth_tokens = (
        context_tokens * activations.depth_tokens // (context_tokens + activations.depth_tokens)
    )
    layers = tuple(layers)
    windows = [part for part in layers if part.window_tokens is not None]
    expanded_bytes = max((part.read_bytes for part in layers), default=0)
    return (
        chunk_tokens * (activations.token_bytes + activations.pair_bytes * depth_tokens)
        + chunk_tokens * sum(part.layers * part.token_bytes for part in windows)
        + rows * activations.row_bytes
        + max(1, rows) * context_tokens * expanded_bytes
    )


def _held_tokens(part: KvLayers, tokens: int) -> int:
    stepped = -(-tokens // part.step_tokens) * part.step_tokens
    return stepped if part.window_tokens is None else min(stepped, part.window_tokens)
