"""What a model folder's files say of its size: config.json and the headers of its weights."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.states import ModelKind
from lmx.supervisor.kv_config import text_section

_HEADER_LIMIT_BYTES: Final = 100 * 1024**2
_FLOAT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_DEFAULT_FLOAT_BYTES: Final = 2
"""Of a model that has none of these: 8-bit floats are computed with in 16 bits."""

_SIZES: Final = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"),
    *("num_key_value_heads", "vocab_size"),
)
"""Of a configuration; negative ones would count as absent, which is little memory."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """``weights_bytes``: of all tensors, as they will be in memory. ``element_bytes``: of one
    number in activations and caches. mlx computes in the type of the weights, of quantized ones
    in that of their scales: of the types that hold floats it is the one with the most bytes."""

    config: dict[str, Any]
    weights_bytes: int
    element_bytes: int


def read_model_files(folder: Path, kind: ModelKind) -> ModelFiles:
    """Read a model folder. Raises :class:`OperationError` when it is not one, whatever is wrong
    with it: a folder from anywhere is no reason for the supervisor to fall."""
    try:
        return _read(folder, kind)
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} can't be read as a model ({type(error).__name__}: {error}): fetch it again",
        ) from error


def shards(folder: Path, kind: ModelKind) -> list[Path]:
    """Return the files that hold the weights."""
    found = sorted(folder.glob("*.safetensors"))
    if kind is not ModelKind.CHAT:
        # The dense layers of sentence-transformers lie in folders of their own.
        found += sorted(folder.glob("*/*.safetensors"))
    return found


def _read(folder: Path, kind: ModelKind) -> ModelFiles:
    if not folder.is_dir():
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}: "
            "give a folder with config.json and *.safetensors, "
            "a .gguf file, or a Hugging Face repo id",
        )
    config = _read_config(folder)
    _refuse_negative(config)
    sizes: Counter[str] = Counter()
    for shard in shards(folder, kind):
        sizes.update(tensor_bytes(shard))
    return ModelFiles(config, sum(sizes.values()), _element_bytes(sizes))


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{folder} has no config.json: not a model folder"
        ) from error
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{file} is not JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{file} is no object: fetch the model again"
        )
    return config


def _refuse_negative(config: dict[str, Any]) -> None:
    for key in _SIZES:
        value = text_section(config).get(key)
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{key} is {value}")


def tensor_bytes(shard: Path) -> Counter[str]:
    """Return the bytes of a safetensors file's tensors by type, from its header alone.

    Format: u64 little endian header length, then JSON whose entries have ``dtype`` and
    ``data_offsets``. Raises :class:`OperationError` for a file that is not one.
    """
    try:
        with shard.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT_BYTES:
                raise ValueError(f"header of {length} bytes")
            header = json.loads(file.read(length))
        return _sum(_tensors(header))
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{shard} is not a safetensors file ({error}): fetch the model again",
        ) from error


def _tensors(header: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            if not 0 <= int(begin) <= int(end):
                raise ValueError(f"{name} lies from {begin} to {end}")
            yield str(entry["dtype"]), int(end) - int(begin)


def _sum(tensors: Iterable[tuple[str, int]]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for dtype, size in tensors:
        sizes[dtype] += size
    return sizes


def _element_bytes(sizes: Counter[str]) -> int:
    floats = [dtype for dtype, _ in sizes.most_common() if dtype in _FLOAT_BYTES]
    return _FLOAT_BYTES[floats[0]] if floats else _DEFAULT_FLOAT_BYTES
