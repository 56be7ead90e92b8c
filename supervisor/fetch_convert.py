"""The border to gguf2mlx: one call that converts a file, with progress and a reason when it fails.

What gguf2mlx 2.2.0 can do, tried on Linux with a Q4_1 file of 135M weights:

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

A projector file for vision (mmproj) is not taken: a multimodal GGUF is refused.

Runs only inside the fetch program.
"""

import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import TextIOBase
from pathlib import Path
from typing import Any, Final, Literal

import gguf
from gguf2mlx import gguf2mlx, vlm

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.conversion_form import Form

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
takes most of a minute, and three are asked for."""


def open_gguf(path: Path, report: Report) -> Any:
    """Return gguf's reader of a file, once it has read the header. Raises what it raises."""
    found = path.stat()
    key = (str(path), found.st_size, found.st_mtime_ns)
    if key not in _opened:
        reader = _reader_class(report, path.name)(str(path))
        _opened.clear()
        _opened[key] = reader
    return _opened[key]


def _reader_class(report: Report, name: str) -> type[Any]:
    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # it has no types
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
        """Pass the text on."""
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
    """Stand in for the function that decodes a tensor anew for the comparison, and count."""
    done = 0

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
    if succeeded:
        report("convert", 1.0, f"converted {source.name}")
    if not succeeded:
        reason = echo.failures[-1] if echo.failures else "gguf2mlx gave no reason"
        raise OperationError(
            ErrorCode.CONVERSION_FAILED, f"{source.name} can't be converted to {form}: {reason}"
        )


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
