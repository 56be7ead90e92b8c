"""Which models are quantized, and how large they are then. Pure."""

from collections.abc import Iterable
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.models.media import of_media
from lmx.protocol.models.safetensors import Tensor
from lmx.protocol.states import ModelKind, QuantizedBits
from lmx.supervisor.fetch.conversion_form import Platform

_WIDTHS: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_BITS: Final = {QuantizedBits.FOUR: 4.0, QuantizedBits.EIGHT: 8.0, QuantizedBits.MIXED: 4.6}
_GROUP_WEIGHTS: Final = 64
_SMALL_WEIGHTS: Final = 16 * 1024
"""Norms, biases and their kin are smaller, and stay as they are."""

_MOST_FOREIGN_SHARE: Final = 0.1
"""So much of an unquantized model may be of other types: tables of positions, masks."""


def refuse_unfit(
    name: str, config: CheckpointConfig, kind: ModelKind, tensors: Iterable[Tensor]
) -> None:
    """Refuse to quantize what is quantized already, and what doesn't write. Raises
    `OperationError`."""
    if kind is not ModelKind.CHAT:
        raise _refused(
            f"{name} is a model for {kind}, and lmx quantizes only models that write: leave out "
            "--bits"
        )
    if config.names_code:
        raise _refused(f"{name} needs code of its own to be run (model_file), which lmx doesn't")
    keys = ("quantization", "quantization_config")
    sizes = {True: 0, False: 0}
    for tensor in tensors:
        sizes[tensor.dtype in _WIDTHS] += tensor.size_bytes
    foreign = sizes[False] > _MOST_FOREIGN_SHARE * max(sum(sizes.values()), 1)
    if foreign or any(section.get(key) for section in (config.whole, config.text) for key in keys):
        raise refuse_quantized(name)


def refuse_quantized(name: str) -> OperationError:
    """Return the error of a model that is quantized already."""
    return _refused(
        f"{name} is quantized already, and would lose more than its size: leave out --bits, or "
        "name the repository of the original (its weights are BF16, F16 or F32)"
    )


def quantized_bytes(tensors: Iterable[Tensor], bits: QuantizedBits, platform: Platform) -> int:
    """Estimate the size of the quantized weights. A scale and a bias for every 64 weights, and what
    is not quantized, have 16 bits on a Mac and 32 elsewhere."""
    own_bytes = 2 if platform == "darwin" else 4
    each_bytes = (_BITS[bits] + 2 * 8 * own_bytes / _GROUP_WEIGHTS) / 8
    total = 0.0
    for tensor in tensors:
        count = tensor.size_bytes / _WIDTHS.get(tensor.dtype, 4)
        stays = count < _SMALL_WEIGHTS or of_media(tensor.name)
        total += count * (own_bytes if stays else each_bytes)
    return int(total)


def _refused(message: str) -> OperationError:
    return OperationError(ErrorCode.MODEL_SOURCE_INVALID, message, param="bits")
