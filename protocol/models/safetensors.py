"""The only reader of the headers of *.safetensors, for all processes: which tensors a file has, and
how large they are. It reads no weights.

The files may come from anywhere: there are limits to how much of each is read.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import open_regular, parse_json
from lmx.protocol.models.checkpoint import weight_files
from lmx.protocol.states import ModelKind

_HEADER_LIMIT_BYTES: Final = 32 * 1024**2
"""Of one file: 300 thousand tensors. What is read of it takes ten times as much memory."""

_HEADERS_LIMIT_BYTES: Final = 128 * 1024**2
"""Of all files of a model."""

_MOST_BYTES: Final = 2**50
"""More than any file has: a petabyte."""

_LFS_POINTER: Final = b"version "
"""The beginning of the text that Git leaves in a file's place where Git LFS is not installed."""

_METADATA: Final = "__metadata__"
"""The entry of a header that is no tensor."""


class Tensor(NamedTuple):
    """A tensor of a file, without its numbers."""

    name: str
    dtype: str
    """The type of its numbers, in the words of the format: ``BF16``."""
    size_bytes: int


def read_tensors(folder: Path, kind: ModelKind) -> Iterator[Tensor]:
    """Read the headers of all weights of a model folder. This blocks for as long as its disk does.

    Raises :class:`OperationError` for a file that is no safetensors file or can't be read, and
    for headers that are too long; and ``OSError``.
    """
    header_bytes = 0
    for file in weight_files(folder, kind):
        tensors, length = file_tensors(file)
        yield from tensors
        header_bytes += length
        if header_bytes > _HEADERS_LIMIT_BYTES:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                f"{folder} can't be read as a model (the headers of its weights have more than "
                f"{_HEADERS_LIMIT_BYTES} bytes): fetch it again",
            )


def file_tensors(shard: Path) -> tuple[list[Tensor], int]:
    """Return the tensors of a safetensors file, from its header alone, and how long that is.

    Format: u64 little endian header length, then JSON whose entries have ``dtype`` and
    ``data_offsets``. Raises :class:`OperationError` for a file that is not one.
    """
    try:
        with open_regular(shard) as file:
            head = file.read(8)
            if head == _LFS_POINTER:
                raise ValueError('it is a pointer of Git LFS: run "git lfs pull" in its folder')
            (length,) = struct.unpack("<Q", head)
            if length > _HEADER_LIMIT_BYTES:
                most = _HEADER_LIMIT_BYTES
                raise ValueError(f"header of {length} bytes, of which at most {most} are read")
            header = parse_json(file.read(length))
        return list(_tensors(header)), length
    except OSError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{shard} can't be read: {error.strerror or error}"
        ) from error
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{shard} is not a safetensors file ({error}): fetch the model again",
        ) from error


def _tensors(header: dict[str, Any]) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name == _METADATA:
            continue
        begin, end = entry["data_offsets"]
        if type(begin) is not int or type(end) is not int:
            raise TypeError("a tensor's place in the file is no number")
        if not 0 <= begin <= end <= _MOST_BYTES:
            raise ValueError(f"{name[:80]} lies beyond any file")
        yield Tensor(name, str(entry["dtype"])[:16], end - begin)
