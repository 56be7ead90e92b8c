"""Keeps transformers from running code that a checkpoint brings along.

``trust_remote_code=False`` is not enough: many of mlx-vlm's processors pass True by themselves.
Refusing every checkpoint with an ``auto_map`` would be too much: most of those that carry one
load with built-in classes alone. So the one function that executes such code is taken away.

The BLAS that mlx computes with on Linux. No mlx here: this must come before its import.

``mlx-cpu`` brings the reference BLAS, at 4.5 GFLOP/s on one core; an OpenBLAS does 50 to 98,
and prefill of float32 weights is about ten times faster. Symbols of a library that is loaded
globally before mlx win over those that mlx brings. On macOS mlx uses Accelerate and Metal.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from typing import NoReturn

import structlog
from transformers import dynamic_module_utils

from lmx.protocol.errors import ErrorCode, OperationError


def forbid_checkpoint_code() -> None:
    """From now on, loading that needs a checkpoint's own code raises :class:`OperationError`.

    For the whole process, for good. Written for transformers 5.23, whose dynamic modules all
    go through ``get_class_in_module``.
    """
    dynamic_module_utils.get_class_in_module = _refuse


def needs_code(what: str) -> OperationError:
    """Return the error of a checkpoint that doesn't load without running code of its own."""
    return OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"This checkpoint needs code of its own to be run ({what}), which lmx doesn't: set "
        "`allow_checkpoint_code: true` for this model if you trust its makers, or use a "
        "checkpoint that needs none.",
    )


def _refuse(class_name: str, *_: object, **__: object) -> NoReturn:
    raise needs_code(class_name)


log = structlog.get_logger()


def prefer_openblas() -> None:
    """Load the system's OpenBLAS, when there is one; logs ``blas.selected`` with the outcome.

    One thread unless OPENBLAS_NUM_THREADS says otherwise: mlx calls it from threads of its
    own, and more of them get in each other's way. Does nothing outside Linux.
    """
    if sys.platform != "linux":
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    name = ctypes.util.find_library("openblas")
    if name is None:
        log.info(
            "blas.selected",
            blas="reference",
            advice="install OpenBLAS (Debian: libopenblas0-pthread) for much faster prefill",
        )
        return
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        log.warning("blas.selected", blas="reference", reason=str(error))
        return
    log.info("blas.selected", blas=name, threads=os.environ["OPENBLAS_NUM_THREADS"])
