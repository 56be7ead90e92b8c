"""The size and the types of a model's weights, from the headers of its *.safetensors alone.

The files may come from anywhere: there are limits to how many of them, and how much of each, are
read.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import open_regular, parse_json
from lmx.protocol.models.checkpoint import weight_files
from lmx.protocol.states import ModelKind

_HEADER_LIMIT_BYTES: Final = 32 * 1024**2
"""Of one file: 300 thousand tensors. What is read of it takes ten times as much memory."""

_HEADERS_LIMIT_BYTES: Final = 128 * 1024**2
_MOST_BYTES: Final = 2**50
"""More than any file has: a petabyte."""

_METADATA: Final = "__metadata__"
"""The entry of a header that is no tensor."""

_Taken = TypeVar("_Taken")

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


def read_weights(folder: Path, kind: ModelKind) -> Weights:
    """Read the headers of all weights of a model folder.

    Raises :class:`OperationError` for a file that is no safetensors file or can't be read, and
    for headers that are too long.
    """
    sizes: Counter[str] = Counter()
    header_bytes = 0
    for file in weight_files(folder, kind):
        tensors, length = tensor_bytes(file)
        sizes.update(tensors)
        header_bytes += length
        if header_bytes > _HEADERS_LIMIT_BYTES:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                f"{folder} can't be read as a model (the headers of its weights have more than "
                f"{_HEADERS_LIMIT_BYTES} bytes): fetch it again",
            )
    return Weights(sizes.total(), _element_bytes(sizes))


def tensor_bytes(shard: Path) -> tuple[Counter[str], int]:
    """Return the bytes of a safetensors file's tensors by type, from its header alone, and how
    long that is.

    Format: u64 little endian header length, then JSON whose entries have ``dtype`` and
    ``data_offsets``. Raises :class:`OperationError` for a file that is not one.
    """

    def measure(header: dict[str, Any], length: int) -> tuple[Counter[str], int]:
        sizes: Counter[str] = Counter()
        for dtype, size in _tensors(header):
            sizes[dtype] += size
        return sizes, length

    return _read_header(shard, measure)


def tensor_names(shard: Path) -> Sequence[str]:
    """Return the names of a safetensors file's tensors. Raises as :func:`tensor_bytes` does."""
    return _read_header(shard, lambda header, _: [name for name in header if name != _METADATA])


def _read_header(shard: Path, take: Callable[[dict[str, Any], int], _Taken]) -> _Taken:
    """Return what ``take`` finds in a file's header; it may stumble over a header of nonsense."""
    try:
        with open_regular(shard) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT_BYTES:
                most = _HEADER_LIMIT_BYTES
                raise ValueError(f"header of {length} bytes, of which at most {most} are read")
            header = parse_json(file.read(length))
        return take(header, length)
    except OSError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{shard} can't be read: {error.strerror or error}"
        ) from error
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{shard} is not a safetensors file ({error}): fetch the model again",
        ) from error


def _tensors(header: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, entry in header.items():
        if name == _METADATA:
            continue
        begin, end = entry["data_offsets"]
        if type(begin) is not int or type(end) is not int:
            raise TypeError("a tensor's place in the file is no number")
        if not 0 <= begin <= end <= _MOST_BYTES:
            raise ValueError(f"{name[:80]} lies beyond any file")
        yield str(entry["dtype"])[:16], end - begin


def _element_bytes(sizes: Counter[str]) -> int:
    floats = [dtype for dtype, _ in sizes.most_common() if dtype in _FLOAT_BYTES]
    return _FLOAT_BYTES[floats[0]] if floats else _DEFAULT_FLOAT_BYTES
