"""One segment of the prefix cache as a file: safetensors, with a checksum over the whole file.

A file that is damaged, cut short or made by another version is recognised as such, and never used.
The tokens are its first tensor.
"""

import io
import itertools
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lmx.worker.mlx.prefix.tree import Tokens, segment_id

SUFFIX: Final = ".safetensors"
_VERSION: Final = "lmx-prefix-1"
_TOKENS: Final = "tokens"
_MOST_HEADER_BYTES: Final = 16 * 1024 * 1024


class DamagedSegmentError(Exception):
    """A file isn't a whole and unchanged segment of this version."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where an array lies in a segment's data."""

    name: str
    dtype: str
    """The type's name in safetensors."""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The description of a segment, without its data."""

    parent_id: bytes
    start: int
    tokens: Tokens
    tensors: tuple[Tensor, ...]
    structure: Any = None
    """JSON of the caller, with which it puts its arrays together again."""

    @property
    def segment_id(self) -> bytes:
        """The segment's identity, which follows from the tokens."""
        return segment_id(self.parent_id, self.start, self.tokens)

    @property
    def nbytes(self) -> int:
        """The size of the arrays."""
        return sum(tensor.nbytes for tensor in self.tensors)


def write_segment(path: Path, record: SegmentRecord, data: Sequence[memoryview]) -> int:
    """Write a new file that only its owner can read; return its size. Raises ``OSError``.

    ``data`` are the arrays' bytes, in the order of ``record.tensors``. There is no fsync; the
    checksum takes its place: a file of which the machine has lost a part is not used.
    """
    parts = [memoryview(record.tokens.astype("<i4").tobytes()), *data]
    metadata = {
        "version": _VERSION,
        "parent": record.parent_id.hex(),
        "start": str(record.start),
        "structure": json.dumps(record.structure),
    }
    tensors = [Tensor(_TOKENS, "I32", (len(record.tokens),), parts[0].nbytes), *record.tensors]
    header = _layout(tensors)
    checksum = zlib.crc32(_dump({**header, "__metadata__": metadata}))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    dumped = _dump({**header, "__metadata__": {**metadata, "checksum": str(checksum)}})
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for part in (memoryview(len(dumped).to_bytes(8, "little") + dumped), *parts):
            while part.nbytes:
                part = part[file.write(part) :]
        return file.tell()


def read_record(path: Path) -> SegmentRecord:
    """Return the description in a file, without checking its data. Raises ``OSError`` and
    :class:`DamagedSegmentError`."""
    with io.FileIO(path) as file:
        header, _ = _read_header(file)
        return _record(header, bytes(_read(file, header[_TOKENS]["data_offsets"][1])))


def read_segment(path: Path) -> tuple[SegmentRecord, list[memoryview]]:
    """Return a segment and each array's bytes, after checking every byte. Raises ``OSError`` and
    :class:`DamagedSegmentError`."""
    with io.FileIO(path) as file:
        header, length = _read_header(file)
        data = memoryview(_read(file, length))
    metadata = dict(header["__metadata__"])
    declared = metadata.pop("checksum", None)
    checksum = zlib.crc32(data, zlib.crc32(_dump({**header, "__metadata__": metadata})))
    if declared != str(checksum):
        raise DamagedSegmentError("its checksum is wrong")
    record = _record(header, bytes(data[: header[_TOKENS]["data_offsets"][1]]))
    parts = []
    offset = 4 * len(record.tokens)
    for tensor in record.tensors:
        parts.append(data[offset : offset + tensor.nbytes])
        offset += tensor.nbytes
    return record, parts


def _layout(tensors: Sequence[Tensor]) -> dict[str, Any]:
    header = {}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    return header


def _dump(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _read_header(file: io.FileIO) -> tuple[dict[str, Any], int]:
    """Return the header and the length of the data. The header's fields have the right types, and
    its tensors fill the data."""
    length = int.from_bytes(_read(file, 8), "little")
    if length > _MOST_HEADER_BYTES:
        raise DamagedSegmentError("its header is too long")
    try:
        header: dict[str, Any] = json.loads(_read(file, length))
        if header["__metadata__"]["version"] != _VERSION:
            raise DamagedSegmentError("it is of another version")
        spans = sorted(
            [int(offset) for offset in entry["data_offsets"]]
            for name, entry in header.items()
            if name != "__metadata__"
        )
        data_bytes = spans[-1][1]
        gapless = all(left[1] == right[0] for left, right in itertools.pairwise(spans))
        whole = header[_TOKENS]["data_offsets"][0] == 0 and gapless
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DamagedSegmentError("its header makes no sense") from error
    if not whole or os.fstat(file.fileno()).st_size != 8 + length + data_bytes:
        raise DamagedSegmentError("it isn't whole")
    return header, data_bytes


def _record(header: dict[str, Any], tokens: bytes) -> SegmentRecord:
    metadata = header["__metadata__"]
    try:
        tensors = sorted(
            (int(entry["data_offsets"][0]), int(entry["data_offsets"][1]), name)
            for name, entry in header.items()
            if name not in ("__metadata__", _TOKENS)
        )
        return SegmentRecord(
            bytes.fromhex(metadata["parent"]),
            int(metadata["start"]),
            np.frombuffer(tokens, "<i4").astype(np.int32),
            tuple(
                Tensor(
                    name,
                    str(header[name]["dtype"]),
                    tuple(int(size) for size in header[name]["shape"]),
                    end - begin,
                )
                for begin, end, name in tensors
            ),
            json.loads(metadata["structure"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedSegmentError("its header makes no sense") from error


def _read(file: io.FileIO, length: int) -> bytearray:
    """Read ``length`` bytes; fewer mean damage."""
    data = bytearray(length)
    rest = memoryview(data)
    while rest.nbytes:
        count = file.readinto(rest)
        if not count:
            raise DamagedSegmentError("it is cut short")
        rest = rest[count:]
    return data
