"""Makes a quantized model folder out of an unquantized one, once. The worker's program quantizes
it, in a process of its own. Runs only inside the fetch program.

The folder is `<models dir>/<name>-<bits>-<hash of the source>`, with a stamp as the folders that
are made from GGUF files have. The stamp also keeps how well the model predicts a text before and
after.
"""

import json
import os
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import (
    CheckpointConfig,
    read_checkpoint_config,
    weight_files,
)
from lmx.protocol.models.kind import read_kind
from lmx.protocol.models.safetensors import Tensor, read_tensors
from lmx.protocol.states import ModelKind, QuantizedBits
from lmx.supervisor.config.secret_variables import without_keys
from lmx.supervisor.config.sources import file_hash, quantized_name
from lmx.supervisor.fetch.conversion_form import Platform
from lmx.supervisor.fetch.made_folder import RESULT, check_room, is_complete, locked, make_once
from lmx.supervisor.fetch.progress import Report, gb
from lmx.supervisor.fetch.quantized_form import quantized_bytes, refuse_unfit
from lmx.supervisor.memory.files import STAMP_NAME
from lmx.supervisor.memory.quantized import quantized_words
from lmx.supervisor.memory.system import read_memory

PROGRAM: Final = (sys.executable, "-P", "-m", "lmx.worker.mlx.quantizing.main")
_MEASURED_TOKENS: Final = 2000
_LOGIT_BYTES: Final = 8
"""In the model's type, and what is computed from them."""

_WORK_BYTES: Final = 1 << 29
"""A layer, its activations, and the libraries."""

_EXIT_S: Final = 30.0


def fetch_quantized(
    folder: Path,
    source: str,
    bits: QuantizedBits,
    models_dir: Path,
    *,
    platform: Platform,
    report: Report,
) -> Path:
    """Return the folder of the quantized model, after it was made from ``folder`` if need be.
    ``source`` is what a person calls that one.

    Raises `OperationError`: `model_source_invalid` for what is not quantized here,
    `insufficient_disk`, `insufficient_memory`, `conversion_failed`.
    """
    config, tensors = fit_to_quantize(folder, source)
    size_bytes = sum(tensor.size_bytes for tensor in tensors)
    report("check", None, f"looking at {source}", done_bytes=size_bytes, total_bytes=size_bytes)
    made_bytes = quantized_bytes(tensors, bits, platform)
    target, stamp = _made_from(folder, source, bits, models_dir)

    def make(made: Path) -> dict[str, Any]:
        # Each takes as much memory as its result: one at a time.
        with locked(
            models_dir / ".quantizing.lock",
            lambda: report("convert", None, "another model is being quantized"),
        ):
            check_room(models_dir, f"quantized, {source}", made_bytes)
            _check_memory(source, made_bytes, config.vocabulary_tokens)
            return _run(folder, made, bits, source, report)

    make_once(
        target,
        stamp,
        make,
        name=source,
        on_wait=lambda: report("convert", None, f"another process is quantizing {source}"),
    )
    result = json.loads((target / STAMP_NAME).read_text()).get(RESULT, {})
    report("check", 1.0, quantized_words(source, result) or "quantized")
    return target


def is_quantized(folder: Path, source: str, bits: QuantizedBits, models_dir: Path) -> bool:
    """Return whether the folder that :func:`fetch_quantized` returns was made already."""
    try:
        made = _made_from(folder, source, bits, models_dir)
    except OSError:
        return False  # A file of the hub's cache is gone, and is downloaded again.
    return is_complete(*made)


def _made_from(
    folder: Path, source: str, bits: QuantizedBits, models_dir: Path
) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the quantized model, and its stamp."""
    stamp = {"source": source, "bits": bits.value, "made_from": _identity(folder)}
    return models_dir / f"{quantized_name(source, bits)}-{file_hash(PurePath(source))}", stamp


def fit_to_quantize(folder: Path, source: str) -> tuple[CheckpointConfig, list[Tensor]]:
    """Return what a folder's files say, with weights or with their heads alone. Raises
    `OperationError` for a model that is not quantized here."""
    config, kind = read_checkpoint_config(folder), read_kind(folder)
    tensors = list(read_tensors(folder, ModelKind.CHAT)) if kind is ModelKind.CHAT else []
    refuse_unfit(source, config, kind, tensors)
    return config, tensors


def _identity(folder: Path) -> list[list[Any]]:
    """Return what changes when the weights do."""
    files = weight_files(folder, ModelKind.CHAT)
    return [[file.resolve().name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _check_memory(source: str, made_bytes: int, vocabulary_tokens: int) -> None:
    logits_bytes = _MEASURED_TOKENS * vocabulary_tokens * _LOGIT_BYTES
    needed_bytes = max(made_bytes, logits_bytes) + _WORK_BYTES
    available_bytes = read_memory().available_bytes
    if available_bytes < needed_bytes:
        raise OperationError(
            ErrorCode.INSUFFICIENT_MEMORY,
            f"to quantize {source} takes about {gb(needed_bytes)} of memory, and "
            f"{gb(available_bytes)} are free: unload a model (`lmx unload`), then try again",
        )


def _run(
    folder: Path, made: Path, bits: QuantizedBits, source: str, report: Report
) -> dict[str, Any]:
    """Run the worker's program to its end. However this one ends, that one ends too: its stdin is
    a pipe from here."""
    process = subprocess.Popen(
        [*PROGRAM, "--source", str(folder), "--target", str(made), "--bits", bits.value],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # On a CPU mlx compiles kernels into the folder of temporary files: this one is deleted.
        env={**without_keys(os.environ), "TMPDIR": str(made.parent)},
    )
    result: dict[str, Any] | None = None
    try:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            if "error" in answer:
                error = answer["error"]
                raise OperationError(
                    ErrorCode(error["code"]), f"{source} can't be quantized: {error['message']}"
                )
            if "result" in answer:
                result = answer["result"]
            else:
                share = answer["fraction"]
                report(answer["phase"], share, f"{answer['detail']} ({100 * share:.0f} %)")
        process.wait(_EXIT_S)
    finally:
        process.kill()
        process.wait()
    if result is None:
        raise OperationError(
            ErrorCode.CONVERSION_FAILED,
            f"the program that quantizes {source} ended with status {process.returncode} and no "
            "word, as when the memory is full: see fetch.log in the folder of logs",
        )
    return result
