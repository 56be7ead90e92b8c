"""The pictures, sounds and videos of one prompt in prefill: which of them are to be encoded next,
and what the model is given for a chunk of the prompt.

Everything is cut to the chunk here: what runs along the tokens, and what runs along the
placeholders. A model that would cut for itself, by the length of its cache, then has nothing to
cut.
"""

from typing import Any, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.protocol.states import MediaKind
from lmx.worker.mlx.media.blocks import Encoding
from lmx.worker.mlx.media.encoding import Features, positions
from lmx.worker.mlx.media.spans import MediaSpan, MediaSpans
from lmx.worker.mlx.model.forward import EMBEDDINGS, Forward

_TYPES: Final = {MediaKind.IMAGE: 1, MediaKind.VIDEO: 2, MediaKind.AUDIO: 3}
"""How processors number the kinds of tokens; 0 is text."""


class PrefillMedia:
    """The media of a prompt. Engine thread."""

    def __init__(self, forward: Forward, tokens: mx.array, media: MediaSpans) -> None:
        """``tokens`` are the whole prompt, [1, tokens]."""
        self._forward = forward
        self._tokens = tokens
        self._media = media
        self._features: dict[int, Features] = {}
        self.encoding: Encoding | None = None
        """What is being computed for the span that is missing first; None: nothing yet."""
        self._positions = positions(forward.model, tokens, media)

    def missing(self, begin: int, end: int) -> MediaSpan | None:
        """Return the first span that has a placeholder from ``begin`` to ``end``, and no
        features."""
        for number, span in enumerate(self._media.spans):
            if number not in self._features and span.start < end and span.end > begin:
                return span
        return None

    def put(self, span: MediaSpan, features: Features) -> None:
        """Take the features of a span."""
        self.encoding = None
        self._features[self._media.spans.index(span)] = features

    def atomic_end(self, begin: int, end: int) -> int:
        """Return where a chunk from ``begin`` that should end at ``end`` ends, if no span may be
        cut: before the span that it would cut, or behind it if it begins with that."""
        if not self._forward.atomic_media:
            return end
        for span in self._media.spans:
            if span.start < end < span.end:
                return span.start if span.start > begin else span.end
        return end

    def arguments(self, begin: int, end: int) -> dict[str, Any]:
        """Return the arguments for the forward pass of a chunk. Those of spans before it are given
        up. Raises ``RuntimeError`` if features of its own spans are not here."""
        if self.missing(begin, end) is not None:
            raise RuntimeError(f"what is at the tokens {begin} to {end} has not been encoded")
        for number in list(self._features):
            if self._media.spans[number].end <= begin:
                del self._features[number]
        part = self._forward.embed(self._tokens[:, begin:end])
        arguments: dict[str, Any] = {name: part[name] for name in EMBEDDINGS if name in part}
        for name, value in self._positions.items():
            arguments[name] = value[..., begin:end] if name == "position_ids" else value
        embeddings = arguments["inputs_embeds"]
        deep_places: list[int] = []
        deep = []
        for number, features in self._features.items():
            span = self._media.spans[number]
            first, last = np.searchsorted(span.places, (begin, end)).tolist()
            if first == last:
                continue
            here = span.places[first:last] - begin
            rows = features.embeddings[first:last].astype(embeddings.dtype)
            embeddings[0, mx.array(here)] = rows
            if features.deep is not None:
                deep_places += here.tolist()
                deep.append(features.deep[:, first:last])
        arguments["inputs_embeds"] = embeddings
        if deep and any(features.dense for features in self._features.values()):
            layers, _, width = deep[0].shape
            dense = mx.zeros((1, end - begin, layers, width), embeddings.dtype)
            rows = mx.concatenate(deep, axis=1).transpose(1, 0, 2).astype(embeddings.dtype)
            dense[0, mx.array(deep_places)] = rows
            arguments["deepstack_visual_embeds"] = dense
        elif deep:
            mask = np.zeros((1, end - begin), np.bool_)
            mask[0, deep_places] = True
            arguments["visual_pos_masks"] = mx.array(mask)
            arguments["deepstack_visual_embeds"] = list(mx.concatenate(deep, axis=1))
        if self._forward.atomic_media:
            types = token_types(self._media, begin, end)
            if types.any():
                arguments["mm_token_type_ids"] = mx.array(types)
        return arguments

    @property
    def rope_deltas(self) -> mx.array | None:
        """The rope deltas with which the model decodes the row, [1, 1]; None for a model without
        them."""
        return self._positions.get("rope_deltas")


def token_types(media: MediaSpans, begin: int, end: int) -> npt.NDArray[np.int32]:
    """Return of which kind each token of a part of a prompt is, [1, tokens]."""
    types = np.zeros((1, end - begin), np.int32)
    for span in media.spans:
        first, last = np.searchsorted(span.places, (begin, end)).tolist()
        types[0, span.places[first:last] - begin] = _TYPES[span.kind]
    return types
