"""What must be set in a worker's process before mlx is imported: its BLAS on Linux, and how wired
memory stays wired on a Mac. No mlx here.

``mlx-cpu`` brings the reference BLAS, at 4.5 GFLOP/s on one core; an OpenBLAS does 50 to 98,
and prefill of float32 weights is about ten times faster. Symbols of a library that is loaded
globally before mlx win over those that mlx brings. On macOS mlx uses Accelerate and Metal.
"""

import ctypes
import ctypes.util
import os
import sys
from typing import Final

import structlog

from lmx.protocol.states import MemoryWiring

log = structlog.get_logger()

VARIABLE: Final = "MLX_METAL_RESIDENCY_REFRESH_INTERVAL_MS"
"""Read by mlx 0.32.4. It is not set by default, and nothing is refreshed then."""

INTERVAL_MS: Final = 500
"""macOS lets go of wired memory after about a second in which the GPU does nothing. The first token
after such a pause took 318 ms instead of 63 (a model of 13.5 GB on an M4 Pro), and llama.cpp
refreshes at this interval for that reason."""


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


def keep_resident(wiring: MemoryWiring) -> None:
    """Let mlx ask again and again for its wired memory to stay wired. What the environment says
    already is kept. Does nothing outside macOS, and if nothing is wired."""
    if sys.platform == "darwin" and wiring is not MemoryWiring.NEVER:
        os.environ.setdefault(VARIABLE, str(INTERVAL_MS))
