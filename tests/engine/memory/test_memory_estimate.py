"""The estimate is within 10 % of what a real worker takes at most, its caches full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc"),
]


def ratio(folder: Path, context_tokens: int) -> float:
    """Of estimate to peak, from a process of its own with a worker of its own."""
    done = subprocess.run(
        [sys.executable, str(BENCH / "bench_memory.py"), str(folder), str(context_tokens), "1"],
        stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(BENCH)},
    )  # fmt: skip
    print(done.stdout)
    found: float = json.loads(done.stdout)["ratio"]
    return found


def test_a_model_that_writes(smollm2_dir: Path) -> None:
    assert ratio(smollm2_dir, 256) == pytest.approx(1, abs=0.1)


def test_an_embedding_model(minilm_dir: Path) -> None:
    assert ratio(minilm_dir, 256) == pytest.approx(1, abs=0.1)
