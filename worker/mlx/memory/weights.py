"""The size and the types of a model's weights, from the headers of its *.safetensors alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.models.media import of_media
from lmx.protocol.models.safetensors import read_tensors
from lmx.protocol.states import ModelKind

_FLOAT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_DEFAULT_FLOAT_BYTES: Final = 2
"""Of a model that has none of these: 8-bit floats are computed with in 16 bits."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the headers of a model's weights say."""

    total_bytes: int
    """All tensors, as they will be in memory."""

    element_bytes: int
    """One number in activations and caches. mlx computes in the type of the weights, of quantized
    ones in that of their scales: of the types that hold floats it is the one with the most
    bytes."""

    media_bytes: int
    """Those of the vision and audio encoders; 0: it takes text only."""


def read_weights(folder: Path, kind: ModelKind) -> Weights:
    """Read the headers of all weights of a model folder. Raises as
    :func:`lmx.protocol.models.safetensors.read_tensors` does."""
    sizes: Counter[str] = Counter()
    media_bytes = 0
    for tensor in read_tensors(folder, kind):
        sizes[tensor.dtype] += tensor.size_bytes
        if of_media(tensor.name):
            media_bytes += tensor.size_bytes
    return Weights(sizes.total(), _element_bytes(sizes), media_bytes)


def _element_bytes(sizes: Counter[str]) -> int:
    floats = [dtype for dtype, _ in sizes.most_common() if dtype in _FLOAT_BYTES]
    return _FLOAT_BYTES[floats[0]] if floats else _DEFAULT_FLOAT_BYTES
