"""On which device the tests of the engine compute, and how exact they are there.

They compute on the CPU. With ``LMX_TEST_DEVICE=gpu`` they compute on a GPU, which adds numbers up
in another order for another number of rows: figures are compared less exactly then, and a test that
compares tokens of rows alone and in company may find others. Only that is tolerated: a test that
fails in any other way fails.
"""

import os
import sys
from pathlib import Path
from typing import Final

ON_GPU: Final = os.environ.get("LMX_TEST_DEVICE", "cpu") == "gpu"

_GPU_LEAST: Final = 1e-3
"""What is tolerated of float32 on a GPU, for numbers around 1. Nobody has measured it."""

_COMPARING: Final = frozenset({"adapters", "decoding", "drafting", "media", "prefix", "speech"})
"""The folders of ``tests/engine`` whose tests compare tokens."""


def choose_device() -> None:
    """Choose the device where there may be a GPU: on a Mac, or where one is asked for."""
    if sys.platform != "darwin" and not ON_GPU:
        return
    # Rounding to 19 bits in products of float32.
    os.environ.setdefault("MLX_ENABLE_TF32", "0")
    if not ON_GPU:
        import mlx.core as mx

        mx.set_default_device(mx.cpu)


def near(tolerance: float, *, on_gpu: bool = ON_GPU) -> float:
    """Return by how much two figures may differ that differ by ``tolerance`` on a CPU."""
    return max(tolerance, _GPU_LEAST) if on_gpu else tolerance


def may_differ(path: Path, *, on_gpu: bool = ON_GPU) -> bool:
    """Return whether a test of this file may find other tokens."""
    folder = path.parent
    return on_gpu and folder.parent.name == "engine" and folder.name in _COMPARING
