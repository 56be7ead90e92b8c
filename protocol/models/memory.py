"""What a model's worker takes in memory, as its engine estimates it, and the arithmetic with that.
Pure.

The engine (:mod:`lmx.protocol.models.engine`) knows what its caches and its computing take, and
says so in these figures. The supervisor plans with the figures and knows nothing of where they
come from; the worker counts its rows' caches with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers whose caches are alike."""

    layers: int
    """How many they are."""

    token_bytes: int
    """For each token of a sequence, in each of these layers."""

    window_tokens: int | None = None
    """A layer holds at most so many tokens; None: all of them."""

    fixed_bytes: int = 0
    """For each sequence, in each of these layers, whatever its length: recurrent state."""

    step_tokens: int = 1
    """The cache grows by so many tokens at a time."""


@dataclass(frozen=True, slots=True)
class Activations:
    """What intermediate results take. At any time those of one chunk, in one layer."""

    chunk_tokens: int
    """So many tokens of a prompt, or of a text, are computed at a time."""

    whole_texts: bool
    """Whether a longer text is computed in one chunk all the same."""

    token_bytes: int
    """For each token of a chunk."""

    pair_bytes: int
    """For each token of a chunk with each token before it; 0 where attention is one kernel."""

    depth_tokens: int
    """Behind so many tokens chunks are half as long, and so on, so that ``pair_bytes`` count for
    fewer than all of them. Above 0."""

    row_bytes: int
    """For each sequence that a token is drawn for."""


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """What a worker of one model takes, by what it is for. All but the weights is an estimate."""

    weights_bytes: int
    """All tensors, as they will be in memory."""

    process_bytes: int
    """The program with its libraries and the tokenizer, once the model is loaded."""

    buffers_bytes: int
    """Freed memory that the engine keeps for reuse, at most."""

    kv_layers: tuple[KvLayers, ...]
    """What each sequence keeps. Empty for a model that doesn't write, and for one of which the
    engine can't tell."""

    activations: Activations


def kv_bytes(layers: Iterable[KvLayers], tokens: int) -> int:
    """Return what one sequence of ``tokens`` keeps in all layers."""
    return sum(
        part.layers * (part.token_bytes * _held_tokens(part, tokens) + part.fixed_bytes)
        for part in layers
    )


def activation_bytes(
    activations: Activations, context_tokens: int, rows: int, layers: Iterable[KvLayers]
) -> int:
    """Return the most that intermediate results take: those of one chunk of a prompt of
    ``context_tokens``, and of drawing tokens for ``rows``.

    Layers with windows hold a chunk more while a prompt is computed.
    """
    at_a_time = max if activations.whole_texts else min
    chunk_tokens = at_a_time(activations.chunk_tokens, context_tokens)
    depth_tokens = (
        context_tokens * activations.depth_tokens // (context_tokens + activations.depth_tokens)
    )
    windows = [part for part in layers if part.window_tokens is not None]
    return (
        chunk_tokens * (activations.token_bytes + activations.pair_bytes * depth_tokens)
        + chunk_tokens * sum(part.layers * part.token_bytes for part in windows)
        + rows * activations.row_bytes
    )


def _held_tokens(part: KvLayers, tokens: int) -> int:
    stepped = -(-tokens // part.step_tokens) * part.step_tokens
    return stepped if part.window_tokens is None else min(stepped, part.window_tokens)
