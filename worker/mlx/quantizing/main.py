"""Quantizes one model folder, then ends. The fetch program runs it:

    python -m lmx.worker.mlx.quantizing.main --source FOLDER --target FOLDER --bits 4|8|mixed

On stdout are JSON lines: any number of `{"phase": "convert"|"check", "fraction": 0.42, "detail":
"..."}`, then one of `{"result": {"bits", "bits_a_weight", "perplexity_before", "perplexity_after",
"tokens"}}` (exit status 0) and `{"error": {"code", "message"}}` (1). What the libraries print goes
to stderr. The program ends when its stdin does. What it has made by then stays where it is.
"""

import argparse
import errno
import json
import math
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.stdout import take_stdout
from lmx.protocol.states import QuantizedBits
from lmx.worker.mlx.device.before_mlx import prefer_openblas

_BEFORE: Final = 0.3
_CONVERTED: Final = 0.7
"""Which share of the work is done then."""


def main() -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lmx.worker.mlx.quantizing.main")
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--target", required=True, type=Path)
    parser.add_argument("--bits", required=True, type=QuantizedBits)
    arguments = parser.parse_args()
    threading.Thread(target=end_with_stdin, daemon=True).start()
    stream = take_stdout()

    def line(value: dict[str, Any]) -> None:
        stream.write(json.dumps(value) + "\n")
        stream.flush()

    try:
        line({"result": _quantize(arguments.source, arguments.target, arguments.bits, line)})
    except OperationError as error:
        line({"error": {"code": error.code.value, "message": error.message}})
        return 1
    # A border to libraries that raise whatever their parts raise; stderr has all of it.
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        failed = failure(error)
        line({"error": {"code": failed.code.value, "message": failed.message[:500]}})
        return 1
    return 0


def _quantize(source: Path, target: Path, bits: QuantizedBits, line: Any) -> dict[str, Any]:
    prefer_openblas()
    # These import mlx, which must come after that.
    from lmx.worker.mlx.quantizing.convert import quantize_folder
    from lmx.worker.mlx.quantizing.perplexity import perplexity

    def stage(phase: str, begin: float, end: float, detail: str) -> Any:
        def advanced(share: float) -> None:
            line({"phase": phase, "fraction": begin + (end - begin) * share, "detail": detail})

        advanced(0.0)
        return advanced

    before, tokens = perplexity(source, stage("check", 0.0, _BEFORE, "measuring the original"))
    width = quantize_folder(
        source, target, bits, stage("convert", _BEFORE, _CONVERTED, "quantizing")
    )
    after, _ = perplexity(target, stage("check", _CONVERTED, 1.0, "measuring the quantized model"))
    if not math.isfinite(after):
        raise OperationError(
            ErrorCode.CONVERSION_FAILED,
            f"quantized to {bits} bits the model computes nonsense: try 8, or a quantized "
            "repository",
        )
    return {
        "bits": bits.value,
        "bits_a_weight": round(width, 2),
        "perplexity_before": round(before, 3) if math.isfinite(before) else None,
        "perplexity_after": round(after, 3),
        "tokens": tokens,
    }


def failure(error: Exception) -> OperationError:
    """Return what an error of a library means."""
    words = f"{type(error).__name__}: {error}"
    # MLX has no errno for what it can't write.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or str(error).startswith("[write] Unable to write"):
        full_words = f"the disk of the folder of models got full: free some space there ({words})"
        return OperationError(ErrorCode.INSUFFICIENT_DISK, full_words)
    return OperationError(ErrorCode.CONVERSION_FAILED, words)


def end_with_stdin() -> None:
    """End the process once stdin has ended: the process that holds its other end is gone."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
