"""What a model folder's files say of its size: config.json and the headers of its weights.

The folder may come from anywhere: each file has limits, and what is in it too.

Whether a model folder is whole: nothing of it is still to come. Looks at names and sizes
alone, never into the weights.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import (
    IrregularFileError,
    open_regular,
    parse_json,
    read_regular,
)
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import ModelKind
from lmx.supervisor.memory.estimate import Widths, widths
from lmx.supervisor.memory.kv import kv_layers, native_context, text_section

CONFIG_LIMIT_BYTES: Final = 16 * 1024**2
_HEADER_LIMIT_BYTES: Final = 32 * 1024**2
"""Of one file: 300 thousand tensors. What is read of it takes ten times as much memory."""

_HEADERS_LIMIT_BYTES: Final = 128 * 1024**2
_MOST_SHARDS: Final = 4096
MOST_BYTES: Final = 2**50
"""More than any model has: a petabyte."""

_MOST_LAYER_BYTES: Final = 2**40
"""Of a layer's cache, for one token."""

_MOST_SIZE: Final = 2**31
_FLOAT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_DEFAULT_FLOAT_BYTES: Final = 2
"""Of a model that has none of these: 8-bit floats are computed with in 16 bits."""

_SIZES: Final = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"),
    *("num_key_value_heads", "vocab_size"),
)
"""Of a configuration; ones that no model has would count as absent, which is little memory."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """``weights_bytes``: of all tensors, as they will be in memory. ``element_bytes``: of one
    number in activations and caches. mlx computes in the type of the weights, of quantized ones
    in that of their scales: of the types that hold floats it is the one with the most bytes.
    ``kv_layers``: of a model that writes. ``context_tokens`` None: the configuration doesn't say.
    ``revision``: a hash that changes when the files do."""

    weights_bytes: int
    element_bytes: int
    kv_layers: tuple[KvLayers, ...]
    context_tokens: int | None
    widths: Widths
    revision: str


def read_model_files(folder: Path, kind: ModelKind) -> ModelFiles:
    """Read a model folder. Blocks for as long as its disk does. Raises :class:`OperationError`
    when it is not one, whatever is wrong with it."""
    try:
        return _read(folder, kind)
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} can't be read as a model ({_why(error)}): fetch it again",
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model folder's configuration. Raises :class:`OperationError`."""
    file = folder / "config.json"
    try:
        config = parse_json(read_regular(file, CONFIG_LIMIT_BYTES))
    except FileNotFoundError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{folder} has no config.json: not a model folder"
        ) from error
    except OSError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{file} can't be read: {_why(error)}"
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


def _read(folder: Path, kind: ModelKind) -> ModelFiles:
    if not folder.is_dir():
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}: "
            "give a folder with config.json and *.safetensors, "
            "a .gguf file, or a Hugging Face repo id",
        )
    config = read_config(folder)
    try:
        _refuse_nonsense(config)
        found = _shards(folder, kind)
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{folder / 'config.json'} makes no sense: {error}"
        ) from error
    sizes: Counter[str] = Counter()
    header_bytes = 0
    for shard in found:
        tensors, length = tensor_bytes(shard)
        sizes.update(tensors)
        header_bytes += length
        if header_bytes > _HEADERS_LIMIT_BYTES:
            raise ValueError(f"the headers of its weights have more than {header_bytes} bytes")
    element_bytes = _element_bytes(sizes)
    try:
        layers = kv_layers(config, element_bytes) if kind is ModelKind.CHAT else ()
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{folder / 'config.json'} makes no sense: {error}"
        ) from error
    if any(part.token_bytes + part.fixed_bytes > _MOST_LAYER_BYTES for part in layers):
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder / 'config.json'} makes no sense: a layer's cache is beyond any memory",
        )
    return ModelFiles(
        sum(sizes.values()), element_bytes, layers, native_context(config), widths(config),
        _revision(folder, found),
    )  # fmt: skip


def _shards(folder: Path, kind: ModelKind) -> list[Path]:
    """Return the files that hold the weights."""
    found = sorted(folder.glob("*.safetensors"))
    if kind is not ModelKind.CHAT:
        # The dense layers of sentence-transformers lie in folders of their own.
        found += sorted(folder.glob("*/*.safetensors"))
    if len(found) > _MOST_SHARDS:
        raise ValueError(f"{len(found)} files of weights")
    return found


def _revision(folder: Path, shards: list[Path]) -> str:
    config = hashlib.sha256(read_regular(folder / "config.json", CONFIG_LIMIT_BYTES)).hexdigest()
    files = [(file.name, file.stat()) for file in shards]
    if folder.parent.name == "snapshots":
        # Of the hub's cache: the folder's name is the revision, and holds links, whose files
        # another download may have made anew.
        parts = [folder.name, config, [(name, stat.st_size) for name, stat in files]]
    else:
        sizes = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
        parts = [str(folder), config, sizes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _refuse_nonsense(config: dict[str, Any]) -> None:
    text = text_section(config)
    for key in _SIZES:
        value = text.get(key)
        if isinstance(value, int) and not 0 <= value < _MOST_SIZE:
            raise ValueError(f"{key} is {value if abs(value) < 2**63 else 'beyond 64 bits'}")


def tensor_bytes(shard: Path) -> tuple[Counter[str], int]:
    """Return the bytes of a safetensors file's tensors by type, from its header alone, and how
    long that is.

    Format: u64 little endian header length, then JSON whose entries have ``dtype`` and
    ``data_offsets``. Raises :class:`OperationError` for a file that is not one.
    """
    try:
        with open_regular(shard) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT_BYTES:
                most = _HEADER_LIMIT_BYTES
                raise ValueError(f"header of {length} bytes, of which at most {most} are read")
            header = parse_json(file.read(length))
        sizes: Counter[str] = Counter()
        for dtype, size in _tensors(header):
            sizes[dtype] += size
        return sizes, length
    except OSError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{shard} can't be read: {_why(error)}"
        ) from error
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{shard} is not a safetensors file ({error}): fetch the model again",
        ) from error


def _tensors(header: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if type(begin) is not int or type(end) is not int:
            raise TypeError("a tensor's place in the file is no number")
        if not 0 <= begin <= end <= MOST_BYTES:
            raise ValueError(f"{name[:80]} lies beyond any file")
        yield str(entry["dtype"])[:16], end - begin


def _element_bytes(sizes: Counter[str]) -> int:
    floats = [dtype for dtype, _ in sizes.most_common() if dtype in _FLOAT_BYTES]
    return _FLOAT_BYTES[floats[0]] if floats else _DEFAULT_FLOAT_BYTES


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"


STAMP_NAME: Final = ".lmx-import.json"
"""In a folder that was made from a GGUF file: from which, and what belongs to it."""

_INDEX: Final = "*.safetensors.index.json"
_SHARD: Final = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.safetensors)")
_MOST_NAMED_SHARDS: Final = 10_000
_INDEX_LIMIT_BYTES: Final = 64 * 1024**2
_TOKENIZERS: Final = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "spiece.model"),
    *("sentencepiece.bpe.model", "vocab.json", "vocab.txt", "*.tiktoken"),
)


def missing_part(folder: Path) -> str | None:
    """Return what a model folder lacks, for people: ``config.json``; None: it is whole.

    Whole is: a configuration, a tokenizer, and every file of weights that an index names, or
    that the files' own numbers promise; without either, at least one. A link to nothing counts
    as missing. Raises ``OSError`` when the folder can't be read.
    """
    if not folder.is_dir():
        return "the folder"
    if not (folder / "config.json").is_file():
        return "config.json"
    dangling = _dangling(folder)
    if dangling is not None:
        return dangling
    weights = sorted(path.name for path in folder.glob("*.safetensors"))
    for name in (*_indexed(folder), *promised(weights)):
        if not (folder / name).is_file():
            return name
    if not weights:
        return "*.safetensors"
    return None if has_tokenizer(path.name for path in folder.iterdir()) else "tokenizer.json"


def has_tokenizer(names: Iterable[str]) -> bool:
    """Whether one of these files is a tokenizer. Pure."""
    return any(fnmatch(name, pattern) for name in names for pattern in _TOKENIZERS)


def promised(names: Iterable[str]) -> list[str]:
    """Return the files that numbered ones say there are: two of ``w-00001-of-00002``. Pure."""
    found: set[str] = set()
    for name in names:
        numbered = _SHARD.fullmatch(name)
        if numbered is not None:
            stem, _, of, count, ending = numbered.groups()
            most = min(int(count), _MOST_NAMED_SHARDS)
            found.update(f"{stem}{number:05}{of}{count}{ending}" for number in range(1, most + 1))
    return sorted(found)


def whole_conversion(folder: Path) -> dict[str, Any] | None:
    """Return the stamp of a folder that was made from a GGUF file, None if it is not whole."""
    try:
        content = read_regular(folder / STAMP_NAME, _INDEX_LIMIT_BYTES)
        stamp: dict[str, Any] = parse_json(content)
        return stamp if stamp["files"] == file_sizes(folder) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a folder, but for the stamp."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != STAMP_NAME
    }


def _dangling(folder: Path) -> str | None:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.exists():
            return str(path.relative_to(folder))
    return None


def _indexed(folder: Path) -> list[str]:
    """Return the files that indices name. A damaged index names itself: it is to come again."""
    names: set[str] = set()
    for index in folder.glob(_INDEX):
        try:
            content = read_regular(index, _INDEX_LIMIT_BYTES)
            found = parse_json(content)["weight_map"].values()
            names.update(name for name in found if isinstance(name, str))
        except (IrregularFileError, ValueError, KeyError, TypeError, AttributeError):
            return [f"{index.name} (it is damaged)"]
    return sorted(names)
