"""Makes a model folder out of a GGUF file, once, with gguf2mlx. It runs only inside the fetch
program.

The folder is `<models dir>/<file name>-<form>-<hash of the file's path>`. The hash separates two
files of one name that are in two folders. A stamp in the folder says which file it was made from.
The stamp is written before the folder appears under that name.

This module is also the border to gguf2mlx: one call converts a file, with progress, and with a
reason when it fails. What gguf2mlx 2.2.0 can do was tried on Linux with a Q4_1 file of 135M
weights:

- `float32`: every architecture it knows, with an audit of the written weights.
- `bfloat16`: its command line refuses it for language models, though the converter below that
  check writes it and audits it like float32. That function is private, so the version is pinned.
- 4-bit: `quantize=True` alone needs mlx-lm, which it can have on macOS only. `direct_quant=True`
  needs numpy only and works on Linux: it decodes the file and quantises it *again* (affine, 4 bits,
  groups of 64), so it loses a little more than the file had lost. It knows the llama, mistral,
  qwen2, stablelm and gemma families and some MoE models, from quantised sources only, keeps
  embeddings unquantised, and is not audited.
- `quant_source="preserve"`, which would keep the file's own codes, writes float16 scales and turns
  whole tensors of some kinds (all of a Q4_1 file) into float16. It is not used.

A projector file for vision (mmproj) is not supported: a multimodal GGUF is refused.
"""

import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from importlib.metadata import version
from io import TextIOBase
from pathlib import Path
from typing import Any, Final, Literal

import gguf
from gguf2mlx import gguf2mlx, vlm

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.sources import file_hash
from lmx.supervisor.fetch.conversion_form import (
    Form,
    GgufFacts,
    Platform,
    conversion_form,
    output_bytes,
)
from lmx.supervisor.fetch.made_folder import check_room, is_complete, make_once
from lmx.supervisor.fetch.progress import gb
from lmx.supervisor.memory.files import (
    STAMP_NAME,
    content_stamp,
    converted_file,
    part_names,
    read_stamp,
)

# A shard is spooled and then copied behind its header: while it is, it is on the disk twice.
SHARD_BYTES = 1 << 30

_REFERENCE_TENSOR: Final = gguf2mlx.fidelity.reference_tensor

Report = Callable[[Literal["convert", "check"], float | None, str], None]


# How far a conversion is when each of its stages is over. The header of a small model takes as long
# as its weights, that of a large one is soon read.
_READ: Final = 0.1
_TOKENIZER: Final = 0.15
_CONVERTED: Final = 0.8
_ENTRIES_A_REPORT: Final = 2000
_MANY_ENTRIES: Final = 200_000

_opened: dict[tuple[str, int, int], Any] = {}
"""The reader that was made last, by its file's path, size and time: to walk over a large vocabulary
takes most of a minute, and three are requested."""


def parts_of(source: Path) -> list[Path]:
    """Return all files of a model that is split into several, the first one first, by the name of
    one of them; of any other file, itself. Raises `OperationError` if one of them is missing."""
    parts = [source.with_name(name) for name in part_names(source.name)]
    missing = next((part.name for part in parts if not part.exists()), None)
    if missing is not None and len(parts) > 1:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{source.name} is one of {len(parts)} parts of a model, and {missing} is not in its "
            "folder: put all parts there.",
        )
    return parts


def open_gguf(path: Path, report: Report) -> Any:
    """Return gguf's reader of a file, once it has read the header. Raises what it raises.

    The weights of a model that is split into several files are those of all of them, and all else
    is in the first. Raises `OperationError` for a part whose name does not say so.
    """
    parts = parts_of(path)
    found = path.stat()
    key = (str(path), found.st_size, found.st_mtime_ns)
    if key not in _opened:
        readers = [_reader_class(report, part.name)(str(part)) for part in parts]
        split = readers[0].get_field("split.count")
        count = int(split.parts[split.data[0]][0]) if split is not None else 1
        if count > 1 and len(parts) != count:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                f"{path.name} is one of {count} parts of a model. Put them all in one folder, "
                f"under the names that they had (name-00001-of-{count:05}.gguf): parts that are "
                "only written one after the other are no model.",
            )
        first, *others = readers
        for other in others:
            first.tensors.extend(other.tensors)
        _opened.clear()
        _opened[key] = first
    return _opened[key]


def header_is_whole(path: Path) -> bool:
    """Return whether a file that was cut off somewhere has all of a GGUF file's header."""

    class Head(_BoundedReader):
        def _build_tensors(self, *_where: Any) -> None:
            """Leave out the weights, which are not there."""

    try:
        Head(str(path))
    # The reader lets through whatever numpy or struct say about bytes that aren't there.
    except Exception:
        return False
    return True


class _BoundedReader(gguf.GGUFReader):  # type: ignore[misc]  # it has no types
    """A reader that ends where the file does. The library's own reads the entries of a list whose
    length is made up for as long as that length says, from behind the end."""

    def _get_field_parts(self, offset: int, *where: Any, **more: Any) -> Any:
        if offset >= len(self.data):
            raise ValueError("the header continues behind the end of the file")
        return super()._get_field_parts(offset, *where, **more)


def _reader_class(report: Report, name: str) -> type[Any]:
    class Reader(_BoundedReader):
        _entries = 0

        def _get_field_parts(self, *where: Any, **more: Any) -> Any:
            # Called for each entry of each list of the header. How many there are nobody knows
            # before the end: the figure gets nearer to it and never there.
            self._entries += 1
            if self._entries % _ENTRIES_A_REPORT == 0:
                share = 1.0 - math.exp(-self._entries / _MANY_ENTRIES)
                report("convert", _READ * share, f"reading {name}")
            return super()._get_field_parts(*where, **more)

    return Reader


class _Echo(TextIOBase):
    """gguf2mlx's stdout: passed on to stderr, with an eye on its failures and stages."""

    def __init__(self, report: Report) -> None:
        self.failures: list[str] = []
        self._report = report

    def write(self, text: str) -> int:
        sys.stderr.write(text)
        if "❌" in text:
            self.failures.append(text.replace("❌", "").strip())
        if "Extracting tokenizer" in text:
            self._report("convert", _READ, "taking out the tokenizer")
        return len(text)


def _progress_class(report: Report, name: str) -> type[Any]:
    class Progress:
        """Stands in for the bar of gguf2mlx, which advances by one for every tensor."""

        def __init__(self, *, total: int, **_look: object) -> None:
            self._total, self._done = total, 0

        def __enter__(self) -> "Progress":
            return self

        def __exit__(self, *_error: object) -> None: ...

        def update(self, count: int) -> None:
            self._done += count
            share = self._done / max(self._total, 1)
            done = _TOKENIZER + (_CONVERTED - _TOKENIZER) * share
            report("convert", done, f"converting {name}")

    return Progress


def _audited(report: Report, total: int) -> Callable[..., Any]:
    """Stand in for the function that decodes a tensor again for the comparison, and count."""
    done = 0

    @wraps(_REFERENCE_TENSOR)
    def reference_tensor(*arguments: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        share = min(1.0, done / max(total, 1))
        detail = "comparing the converted weights with the file"
        report("check", _CONVERTED + (1.0 - _CONVERTED) * share, detail)
        return _REFERENCE_TENSOR(*arguments, **more)

    return reference_tensor


def run_gguf2mlx(source: Path, target: Path, form: Form, report: Report) -> None:
    """Convert in this process: its API gives progress and ends with us, a child would do neither.

    gguf2mlx says why it failed only in what it prints. Raises `OperationError`.
    """
    reader = open_gguf(source, report)
    gguf2mlx.GGUFReader = lambda _: reader
    gguf2mlx.tqdm = _progress_class(report, source.name)
    gguf2mlx.fidelity.reference_tensor = _audited(report, len(reader.tensors))
    echo = _Echo(report)
    with redirect_stdout(echo):
        if vlm.is_vlm(reader):
            echo.failures.append("it is multimodal; use a folder in MLX form")
            succeeded = False
        else:
            succeeded = _convert(source, target, form)
    if not succeeded:
        reason = echo.failures[-1] if echo.failures else "gguf2mlx gave no reason"
        raise OperationError(
            ErrorCode.CONVERSION_FAILED, f"{source.name} can't be converted to {form}: {reason}"
        )
    report("convert", 1.0, f"converted {source.name}")


def _convert(source: Path, target: Path, form: Form) -> bool:
    # The public `convert` wraps these two in checks of which one refuses bfloat16 (see above).
    target.mkdir()
    dtype = form.removeprefix("int4-")
    places = (str(source), str(target))
    try:
        if form.startswith("int4-"):
            done = gguf2mlx._convert_direct_quantized(
                *places,
                dtype,
                q_bits=4,
                q_group_size=64,
                q_mode="affine",
                max_shard_bytes=SHARD_BYTES,
            )
        else:
            done = gguf2mlx._convert(*places, dtype, max_shard_bytes=SHARD_BYTES)
    except OSError:
        raise
    # A border to a library that raises whatever its parts raise; the cause is kept.
    except Exception as error:
        raise OperationError(
            ErrorCode.CONVERSION_FAILED,
            f"{source.name} can't be converted to {form} ({type(error).__name__}: {error})",
        ) from error
    return bool(done)


MAGIC = b"GGUF"
# llama.cpp's types that are not quantised.
_FLOAT_TYPES = frozenset({"F32", "F16", "BF16", "F64"})

Converter = Callable[[Path, Path, Form, Report], None]


def _ignore_progress(_phase: str, _fraction: float | None, _detail: str) -> None:
    """Nobody looks at the progress."""


def read_facts(source: Path, report: Report = _ignore_progress) -> GgufFacts:
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
    parts = parts_of(source)
    try:
        tensors = open_gguf(source, report).tensors
    except OperationError:
        raise
    # The reader lets through whatever numpy or struct say about bytes that aren't there.
    except Exception as error:
        raise OperationError(
            invalid,
            f"{source} ({gb(source.stat().st_size)}) is truncated or damaged: fetch it again "
            f"({type(error).__name__}: {error})",
        ) from error
    weights = {True: 0, False: 0}
    for tensor in tensors:
        weights[tensor.tensor_type.name not in _FLOAT_TYPES] += int(tensor.n_elements)
    if not tensors:
        raise OperationError(invalid, f"{source} holds no weights: it may be one of several files")
    size_bytes = sum(part.stat().st_size for part in parts)
    return GgufFacts(size_bytes, sum(weights.values()), weights[True] > weights[False])


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
    parts_of(source)  # refuses one of which a part is missing
    named, source = source, converted_file(source)
    facts = _known_facts(source, models_dir) or read_facts(source, report)
    form = conversion_form(platform, facts, memory_bytes)

    def make(made: Path) -> dict[str, Any]:
        made_bytes = output_bytes(form, facts)
        needed_bytes = made_bytes + min(made_bytes, SHARD_BYTES)
        check_room(models_dir, f"the conversion of {source.name}", needed_bytes)
        (convert or run_gguf2mlx)(source, made, form, report)
        return {}

    return make_once(
        _target(named, models_dir, form),
        _stamp_of(source, facts, form),
        make,
        name=source.name,
        on_wait=lambda: _report_wait(report, source),
    )


def is_converted(source: Path, models_dir: Path, platform: Platform, memory_bytes: int) -> bool:
    """Return whether the folder that :func:`fetch_gguf` returns was made already."""
    try:
        parts_of(source)
    except OperationError:
        return False
    file = converted_file(source)
    facts = _known_facts(file, models_dir)
    if facts is None:
        return False
    form = conversion_form(platform, facts, memory_bytes)
    return is_complete(_target(source, models_dir, form), _stamp_of(file, facts, form))


def _target(source: Path, models_dir: Path, form: Form) -> Path:
    """Return the folder of a file's conversion."""
    file = converted_file(source)
    # A file of the hub's cache is a link to one that is named by its hash.
    name = file.stem if file.suffix.lower() == ".gguf" else source.stem
    return models_dir / f"{name}-{form}-{file_hash(file)}"


def _known_facts(source: Path, models_dir: Path) -> GgufFacts | None:
    """Take the facts from an earlier conversion of the same file.

    The reader walks over every token of the vocabulary: 2.4 s for 49 thousand of them.
    """
    for path in models_dir.glob(f"*-{file_hash(source)}/{STAMP_NAME}"):
        try:
            found = read_stamp(path.parent) or {}
            facts = GgufFacts(found["source_bytes"], found["weight_count"], found["is_quantised"])
            if found.items() >= _stamp_of(source, facts, found["form"]).items():
                return facts
        except (OSError, KeyError):
            # Not a stamp that this version wrote, or no such file: the reader will report it.
            continue
    return None


def _stamp_of(source: Path, facts: GgufFacts, form: Form) -> dict[str, Any]:
    return {
        "source": str(source),
        **content_stamp(parts_of(source)),
        "weight_count": facts.weight_count,
        "is_quantised": facts.is_quantised,
        "form": form,
        "gguf2mlx": version("gguf2mlx"),
    }


def _report_wait(report: Report, source: Path) -> None:
    report("convert", None, f"another process is converting {source.name}")
