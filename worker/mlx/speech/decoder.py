"""Runs Whisper's network: a window's sound to features, tokens to the next token, and the attention
that shows when tokens were spoken.

The classes are mlx-audio's, but their blocks are called one by one. So the keys and values of the
sound are computed once for all attempts at a window, logits only for the positions that need them,
and of the attention only the heads that follow the sound are kept: those of all heads would take
0.7 GB with large models.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_audio.stt.models.whisper.audio import HOP_LENGTH, N_SAMPLES, log_mel_spectrogram

from lmx.worker.mlx.speech.rules import Allowed, Attempt, allowed_next
from lmx.worker.mlx.speech.vocabulary import SpeechVocabulary

SAMPLES_PER_FRAME: Final = int(HOP_LENGTH)
WINDOW_SAMPLES: Final = int(N_SAMPLES)

_PART_TOKENS: Final = 16
"""So many tokens are computed in one part of a window: a third of a second, with a large model on a
Mac as with a small one on a CPU."""

_SMOOTH_OVER: Final = 7
"""The attention to each time is the median of this many times, 20 ms apart."""


class EncodedWindow:
    """An encoded window, for as many attempts at its text as are needed."""

    def __init__(self, network: SpeechNetwork, features: mx.array) -> None:
        self._network = network
        self._features = features
        self._cross: list[Any] = [None] * len(network.model.decoder.blocks)

    def likeliest_language(self) -> str:
        """Return the code of the language that is spoken in the window."""
        vocabulary = self._network.vocabulary
        hidden, _ = self._forward([vocabulary.start], self._cross)
        logits = self._network.logits(hidden[0, 0])
        codes: list[Any] = list(vocabulary.languages)
        best: Any = mx.argmax(logits[mx.array(list(vocabulary.languages.values()))]).item()
        language: str = codes[best]
        return language

    def write(
        self, begin: Sequence[int], before: Sequence[int], temperature: float, seed: int
    ) -> Generator[None, None, Attempt]:
        """Return the text that the model writes; yields between two parts of the work.

        ``begin`` is what a transcript begins with, ``before`` the text before the window. The same
        seed draws the same tokens.
        """
        network, vocabulary = self._network, self._network.vocabulary
        caches: list[Any] = [None if kv is None else (None, kv) for kv in self._cross]
        prompt = [*((vocabulary.previous, *before) if before else ()), *begin]
        hidden, caches = self._forward(prompt, caches)
        self._cross = [cross for _, cross in caches]
        no_speech = network.no_speech_prob(hidden[0, len(prompt) - len(begin)])
        tokens: list[int] = []
        total_logprob = 0.0
        for step in range(network.most_tokens):
            allowed = allowed_next(tokens, vocabulary.stamp_begin, vocabulary.stamps)
            key = mx.random.key((seed * 1009 + step) % 2**63) if temperature else None
            token, logprob = network.draw(hidden[0, -1], allowed, temperature, key)
            total_logprob += logprob
            if token == vocabulary.end:
                break
            tokens.append(token)
            if len(tokens) % _PART_TOKENS == 0:
                yield
            if len(prompt) + len(tokens) > network.model.dims.n_text_ctx:
                break  # There is no position for this token.
            hidden, caches = self._forward([token], caches, len(prompt) + step)
        mean_logprob = total_logprob / (len(tokens) + 1)
        text = vocabulary.decode(tokens).strip()
        return Attempt(tuple(tokens), text, temperature, mean_logprob, no_speech)

    def attention(
        self, begin: Sequence[int], text: Sequence[int], frames: int
    ) -> Generator[None, None, np.ndarray[Any, Any]]:
        """Return how much each token of ``text``, and the end behind it, attends to each 20 ms of
        the window's first ``frames``; yields between two parts of the work."""
        vocabulary = self._network.vocabulary
        tokens = [*begin, vocabulary.no_stamps, *text, vocabulary.end]
        hidden = self._embed(tokens, 0)
        total = mx.zeros((len(text) + 1, frames // 2))
        # The first row is of the first token of the text, the last one of the end.
        rows = slice(len(begin), len(tokens) - 1)
        for index, heads in enumerate(self._network.alignment_heads):
            hidden, _, scores = self._call(index, hidden, (None, self._cross[index]))
            for head in heads:
                attention = scores[0, head, :, : frames // 2].astype(mx.float32)
                total = total + _smoothed(_normalized(attention))[rows]
                # One head at a time: all of them would take much memory.
                mx.eval(total)
            mx.eval(hidden)
            yield
        return np.array(total / sum(map(len, self._network.alignment_heads)))

    def _forward(
        self, tokens: Sequence[int], caches: Sequence[Any], offset: int = 0
    ) -> tuple[mx.array, list[Any]]:
        """Return the last hidden states of ``tokens``, which come after ``offset`` others, and the
        caches with them."""
        hidden = self._embed(tokens, offset)
        after: list[Any] = []
        for index, cache in enumerate(caches):
            hidden, kept, _ = self._call(index, hidden, cache)
            after.append(kept)
        normed: mx.array = self._network.model.decoder.ln(hidden)
        return normed, after

    def _embed(self, tokens: Sequence[int], offset: int) -> mx.array:
        decoder = self._network.model.decoder
        positions = decoder.positional_embedding[offset : offset + len(tokens)]
        embedded: mx.array = decoder.token_embedding(mx.array([list(tokens)])) + positions
        return embedded

    def _call(self, index: int, hidden: mx.array, cache: Any) -> tuple[mx.array, Any, mx.array]:
        """Return what a layer makes of the hidden states, its cache with them, and the scores
        [1, heads, tokens, times] of its attention to the sound."""
        decoder = self._network.model.decoder
        made: tuple[mx.array, Any, mx.array] = decoder.blocks[index](
            hidden, self._features, mask=decoder._mask, kv_cache=cache
        )
        return made


class SpeechNetwork:
    """A Whisper whose weights are in memory. Engine thread."""

    def __init__(
        self, model: Any, vocabulary: SpeechVocabulary, alignment_heads: Sequence[Sequence[int]]
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.alignment_heads = alignment_heads
        """The heads of each of the decoder's layers that attend to the time at which a token is
        spoken."""
        self.most_tokens = model.dims.n_text_ctx // 2
        """How many tokens a window's transcript may have; as many more are for what came before."""
        ids = mx.arange(model.dims.n_vocab)
        never = np.zeros(model.dims.n_vocab, bool)
        never[list(vocabulary.never())] = True
        self._ids, self._never = ids, mx.array(never)
        mx.eval(self._ids, self._never)

    def encode(self, samples: np.ndarray[Any, Any]) -> Generator[None, None, EncodedWindow]:
        """Compute a window's features: of at most 30 s at 16 kHz, filled up with silence. Yields
        between two layers."""
        padded = np.zeros(WINDOW_SAMPLES, np.float32)
        padded[: samples.size] = samples
        mel = log_mel_spectrogram(padded, n_mels=self.model.dims.n_mels)
        encoder = self.model.encoder
        hidden = mel.astype(self.model.dtype)[None]
        for convolution in (encoder.conv1, encoder.conv2):
            hidden = nn.gelu(convolution(hidden))
        hidden = hidden + encoder._positional_embedding
        for block in encoder.blocks:
            hidden, *_ = block(hidden)
            mx.eval(hidden)
            yield
        features = encoder.ln_post(hidden)
        mx.eval(features)
        return EncodedWindow(self, features)

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of one position, or of several."""
        logits: mx.array = self.model.decoder.token_embedding.as_linear(hidden)
        return logits.astype(mx.float32)

    def no_speech_prob(self, hidden: mx.array) -> float:
        """Return how likely it is that nobody speaks, by the state at the transcript's beginning;
        0 for a model without that token."""
        if self.vocabulary.no_speech is None:
            return 0.0
        probability: Any = mx.softmax(self.logits(hidden))[self.vocabulary.no_speech].item()
        return float(probability)

    def draw(
        self, hidden: mx.array, allowed: Allowed, temperature: float, key: mx.array | None
    ) -> tuple[int, float]:
        """Return the next token and its logprob. ``key`` is needed above temperature 0."""
        vocabulary, ids = self.vocabulary, self._ids
        is_stamp = ids >= vocabulary.stamp_begin
        stamp = ids - vocabulary.stamp_begin
        fits = (
            ((ids < vocabulary.end) & allowed.text)
            | ((ids == vocabulary.end) & allowed.end)
            | (is_stamp & (stamp >= allowed.first_stamp) & (stamp <= allowed.last_stamp))
        ) & ~self._never
        logits = mx.where(fits, self.logits(hidden), -mx.inf)
        # A stamp comes if all stamps together are likelier than any single token of text.
        stamps = mx.logsumexp(mx.where(is_stamp, logits, -mx.inf))
        best_text = mx.max(mx.where(is_stamp, -mx.inf, logits))
        logits = mx.where((stamps > best_text) & ~is_stamp, -mx.inf, logits)
        logprobs = logits - mx.logsumexp(logits)
        if key is None:
            token = mx.argmax(logits)
        else:
            token = mx.random.categorical(logits / temperature, key=key)
        logprob = logprobs[token]
        mx.eval(token, logprob)
        drawn: Any = token.item()
        its_logprob: Any = logprob.item()
        return drawn, its_logprob


def _normalized(scores: mx.array) -> mx.array:
    """Return the attention [tokens, times] of a head, with the mean 0 and the deviation 1 at each
    time, so that tokens which every time attends to don't count."""
    weights = mx.softmax(scores, axis=-1, precise=True)
    mean = mx.mean(weights, axis=0, keepdims=True)
    deviation = mx.sqrt(mx.var(weights, axis=0, keepdims=True))
    return (weights - mean) / mx.maximum(deviation, 1e-10)


def _smoothed(weights: mx.array) -> mx.array:
    """Return the median over neighbouring times; at the edges the times are mirrored."""
    reach = _SMOOTH_OVER // 2
    times = weights.shape[1]
    if times <= reach:
        return weights
    left, right = weights[:, 1 : reach + 1][:, ::-1], weights[:, -reach - 1 : -1][:, ::-1]
    padded = mx.concatenate([left, weights, right], axis=1)
    neighbours = mx.stack([padded[:, shift : shift + times] for shift in range(_SMOOTH_OVER)], 2)
    return mx.sort(neighbours, axis=2)[:, :, reach]
