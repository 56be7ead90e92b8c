"""Make a model folder out of a GGUF file, once, with gguf2mlx.

The folder is `<models dir>/<file name>-<form>-<hash of the file's path>`; the hash keeps two files
of one name in two folders apart. A stamp in it, written before it appears under that name, tells
which file it was made from. Runs only inside the fetch program.

"""

import errno
import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.completeness import STAMP_NAME, file_sizes
from lmx.supervisor.conversion_form import (
    Form,
    GgufFacts,
    Platform,
    conversion_form,
    output_bytes,
)
from lmx.supervisor.fetch_convert import SHARD_BYTES, Report, open_gguf, run_gguf2mlx
from lmx.supervisor.sources import file_hash

MAGIC = b"GGUF"
SPARE_BYTES = 1 << 28
# llama.cpp's types that are not quantised.
_FLOAT_TYPES = frozenset({"F32", "F16", "BF16", "F64"})

Converter = Callable[[Path, Path, Form, Report], None]


def _unheard(_phase: str, _fraction: float | None, _detail: str) -> None:
    """Nobody looks at the progress."""


def read_facts(source: Path, report: Report = _unheard) -> GgufFacts:
    """Read a GGUF file's header. Raises `OperationError` for what is no whole GGUF file."""
    invalid = ErrorCode.MODEL_SOURCE_INVALID
    try:
        with source.open("rb") as handle:
            magic = handle.read(len(MAGIC))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OperationError(invalid, f"{source} can't be read: {reason}") from error
    if magic != MAGIC:
        raise OperationError(
            invalid, f"{source} is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}"
        )
    try:
        tensors = open_gguf(source, report).tensors
    # The reader lets through whatever numpy or struct say about bytes that aren't there.
    except Exception as error:
        raise OperationError(
            invalid,
            f"{source} ({_gb(source.stat().st_size)}) is truncated or damaged: fetch it again "
            f"({type(error).__name__}: {error})",
        ) from error
    weights = {True: 0, False: 0}
    for tensor in tensors:
        weights[tensor.tensor_type.name not in _FLOAT_TYPES] += int(tensor.n_elements)
    if not tensors:
        raise OperationError(invalid, f"{source} holds no weights: it may be one of several files")
    return GgufFacts(source.stat().st_size, sum(weights.values()), weights[True] > weights[False])


def fetch_gguf(
    source: Path,
    models_dir: Path,
    *,
    platform: Platform,
    memory_bytes: int,
    report: Report,
    convert: Converter | None = None,
) -> Path:
    """Return the model folder made from `source`, after converting it if need be.

    A folder whose stamp and files fit is used again. Two processes convert once: the second waits.
    Raises `OperationError`: `model_source_invalid`, `insufficient_disk`, `conversion_failed`.
    """
    report("check", None, f"reading {source.name}")
    # A file of the hub's cache is a link to one that is named by its hash.
    name = source.stem
    source = source.resolve()
    if source.suffix.lower() == ".gguf":
        name = source.stem
    path_hash = file_hash(source)
    facts = _known_facts(source, models_dir, path_hash) or read_facts(source, report)
    form = conversion_form(platform, facts, memory_bytes)
    target = models_dir / f"{name}-{form}-{path_hash}"
    stamp = _stamp_of(source, facts, form)
    if is_complete(target, stamp):
        return target
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with _locked(models_dir / f".{target.name}.lock", lambda: _report_wait(report, source)):
            if not is_complete(target, stamp):
                _check_disk(models_dir, output_bytes(form, facts))
                _make(source, target, stamp, form, report, convert or run_gguf2mlx)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise OperationError(
                ErrorCode.CONVERSION_FAILED, f"converting {source.name} failed: {error}"
            ) from error
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK, f"the disk of {models_dir} got full: free some space there"
        ) from error
    return target


def _known_facts(source: Path, models_dir: Path, path_hash: str) -> GgufFacts | None:
    """Take the facts from an earlier conversion of the same file.

    The reader walks over every token of the vocabulary: 2.4 s for 49 thousand of them.
    """
    for path in models_dir.glob(f"*-{path_hash}/{STAMP_NAME}"):
        try:
            found = json.loads(path.read_text())
            facts = GgufFacts(found["source_bytes"], found["weight_count"], found["is_quantised"])
            if found.items() >= _stamp_of(source, facts, found["form"]).items():
                return facts
        except (OSError, ValueError, KeyError, AttributeError):
            # Not a stamp that this version wrote, or no such file: the reader will tell.
            continue
    return None


def _stamp_of(source: Path, facts: GgufFacts, form: Form) -> dict[str, Any]:
    status = source.stat()
    return {
        "source": str(source),
        "source_bytes": status.st_size,
        "source_mtime_ns": status.st_mtime_ns,
        "weight_count": facts.weight_count,
        "is_quantised": facts.is_quantised,
        "form": form,
        "gguf2mlx": version("gguf2mlx"),
    }


def is_complete(folder: Path, stamp: dict[str, Any]) -> bool:
    """Whether the folder was made from the stamped source, and has all its files in full size."""
    try:
        found = json.loads((folder / STAMP_NAME).read_text())
        files: dict[str, int] = found.pop("files")
        return bool(found == stamp) and files == file_sizes(folder)
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _make(
    source: Path,
    target: Path,
    stamp: dict[str, Any],
    form: Form,
    report: Report,
    convert: Converter,
) -> None:
    # The lock is held, so a folder of this name is what a killed process left.
    scratch = target.parent / f".{target.name}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        made = scratch / "model"
        convert(source, made, form, report)
        (made / STAMP_NAME).write_text(json.dumps({**stamp, "files": file_sizes(made)}, indent=1))
        if target.exists():
            target.rename(scratch / "outdated")
        made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _report_wait(report: Report, source: Path) -> None:
    report("convert", None, f"another process is converting {source.name}")


def _check_disk(models_dir: Path, made_bytes: int) -> None:
    needed_bytes = made_bytes + min(made_bytes, SHARD_BYTES) + SPARE_BYTES
    free_bytes = shutil.disk_usage(models_dir).free
    if free_bytes < needed_bytes:
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"the conversion needs {_gb(needed_bytes)} in {models_dir}, which has "
            f"{_gb(free_bytes)} free: free some space there",
        )


def _gb(count_bytes: int) -> str:
    return f"{count_bytes / 1e9:.2f} GB"
