"""Decides whether a model folder is complete. It looks only at names, sizes and times, never into
the weights.
"""

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from lmx.protocol.host.regular_file import IrregularFileError, parse_json, read_regular

STAMP_NAME: Final = ".lmx-import.json"
"""The file in a folder that lmx made, from a GGUF file for example. It says what the folder was
made from, and which files belong to it."""

_WEIGHTS: Final = "*.safetensors"
_INDEX: Final = "*.safetensors.index.json"
_AGAIN: Final = ("consolidated", "original/")
_SHARD: Final = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.safetensors)")
_DAMAGED: Final = " (it is damaged)"
_PART: Final = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.gguf)", re.IGNORECASE)
_MOST_PARTS: Final = 1000
_MOST_NAMED_SHARDS: Final = 10_000
_INDEX_LIMIT_BYTES: Final = 64 * 1024**2
_TOKENIZERS: Final = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "spiece.model"),
    *("sentencepiece.bpe.model", "vocab.json", "vocab.txt", "*.tiktoken"),
    # A model that reads phonemes aloud has its symbols in config.json.
    *("voices", "voices/*.safetensors"),
)


def missing_part(folder: Path) -> str | None:
    """Return what a model folder lacks (``config.json``, for example), for people. Returns None if
    it is complete.

    A complete folder has a configuration, a tokenizer, and every file of weights that an index
    names or that the numbers in the files' names promise; without either, at least one file of
    weights. A link that leads nowhere counts as missing. Raises ``OSError`` when the folder can't
    be read.
    """
    if not folder.is_dir():
        return "the folder"
    if not (folder / "config.json").is_file():
        return "config.json"
    dangling = _dangling(folder)
    if dangling is not None:
        return dangling
    found = {path.name for path in folder.iterdir()}
    names = found - given_again(found)
    weights = sorted(name for name in names if fnmatch(name, _WEIGHTS))
    named = _indexed(folder, names)
    if weights and not any((folder / name).exists() for name in named):
        named = [name for name in named if name.endswith(_DAMAGED)]  # It is of other files.
    for name in (*named, *promised(weights)):
        if not (folder / name).is_file():
            return name
    if not weights:
        return "*.safetensors"
    return None if has_tokenizer(found) else "tokenizer.json"


def given_again(names: Collection[str]) -> set[str]:
    """Return the files of a repository, by their paths, that hold its model once more in a form
    that is never loaded: those that Mistral calls consolidated, and the folder ``original``.
    Pure."""
    again = {name for name in names if name.startswith(_AGAIN)}
    others = (name for name in names if name not in again and "/" not in name)
    return again if any(fnmatch(name, _WEIGHTS) for name in others) else set()


def has_tokenizer(names: Iterable[str]) -> bool:
    """Return whether one of these files is a tokenizer. Pure."""
    return any(fnmatch(name, pattern) for name in names for pattern in _TOKENIZERS)


def promised(names: Iterable[str]) -> list[str]:
    """Return the files that must exist if numbered ones do: two for ``w-00001-of-00002``. Pure."""
    found: set[str] = set()
    for name in names:
        numbered = _SHARD.fullmatch(name)
        if numbered is not None:
            stem, _, of, count, ending = numbered.groups()
            most = min(int(count), _MOST_NAMED_SHARDS)
            found.update(f"{stem}{number:05}{of}{count}{ending}" for number in range(1, most + 1))
    return sorted(found)


def part_names(name: str) -> list[str]:
    """Return the names of all parts of a GGUF file that is split into several, in their order; of
    any other file, its own. There is always one. Pure."""
    numbered = _PART.fullmatch(name)
    if numbered is None:
        return [name]
    stem, _, of, count, ending = numbered.groups()
    most = min(int(count), _MOST_PARTS)
    names = [f"{stem}{number:05}{of}{count}{ending}" for number in range(1, most + 1)]
    return names if name in names else [name]


def converted_file(file: Path) -> Path:
    """Return the absolute path of the GGUF file under which a conversion is kept, by the path of
    the file that a source names. Links are followed, except for a file that is one of several: the
    first of them stands for all, and the others are next to it only under these names."""
    parts = part_names(file.name)
    return file.resolve() if len(parts) == 1 else file.absolute().with_name(parts[0])


def content_stamp(parts: Iterable[Path]) -> dict[str, int]:
    """Return the entries of a stamp that tell what is in a GGUF file, which may have several parts,
    from what is there later. Raises ``OSError``."""
    found = [part.stat() for part in parts]
    return {
        "source_bytes": sum(part.st_size for part in found),
        "source_mtime_ns": sum(part.st_mtime_ns for part in found),
    }


def whole_conversion(folder: Path) -> dict[str, Any] | None:
    """Return the stamp of a folder that lmx made, None if it is not complete. What people have
    added to the folder, a drafter for example, changes nothing."""
    stamp = read_stamp(folder)
    try:
        whole = stamp is not None and stamp["files"].items() <= file_sizes(folder).items()
    except OSError:
        return None
    return stamp if whole else None


def read_stamp(folder: Path) -> dict[str, Any] | None:
    """Return the stamp of a folder that lmx made, with the sizes of its ``files``; None if it has
    none."""
    try:
        stamp = parse_json(read_regular(folder / STAMP_NAME, _INDEX_LIMIT_BYTES))
    except (OSError, ValueError):
        return None
    made = isinstance(stamp, dict) and isinstance(stamp.get("files"), dict)
    return stamp if made else None


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a folder, except the stamp."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != STAMP_NAME
    }


def folder_bytes(folder: Path) -> int:
    """Return what the files in a folder take; links take what they point to elsewhere. Raises
    ``OSError``."""
    return sum(found.st_size for found in regular_files(folder))


def regular_files(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of each file in a folder that is not a link. A file that is gone by then is
    left out, because a download renames its files. Raises ``OSError``."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                yield found


def _dangling(folder: Path) -> str | None:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.exists():
            return str(path.relative_to(folder))
    return None


def _indexed(folder: Path, files: Iterable[str]) -> list[str]:
    """Return the files that the indices among ``files`` name. A damaged index names itself, so that
    it is fetched again."""
    names: set[str] = set()
    for index in (folder / name for name in files if fnmatch(name, _INDEX)):
        try:
            content = read_regular(index, _INDEX_LIMIT_BYTES)
            found = parse_json(content)["weight_map"].values()
            names.update(name for name in found if isinstance(name, str))
        except (IrregularFileError, ValueError, KeyError, TypeError, AttributeError):
            return [f"{index.name}{_DAMAGED}"]
    return sorted(names)
