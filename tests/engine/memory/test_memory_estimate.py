"""The estimate is within 10 % of what a real worker takes at most, its caches full."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models.tiny_models import make_tiny_model

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc"),
    pytest.mark.long,
]


def ratio(folder: Path, context_tokens: int) -> float:
    """Of estimate to peak, from a process of its own with a worker of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_memory", str(folder), str(context_tokens), "1"],
        stdout=subprocess.PIPE, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    print(done.stdout)
    found: float = json.loads(done.stdout)["ratio"]
    return found


def test_a_model_that_writes(tmp_path: Path) -> None:
    """Two thirds of what it takes are its KV caches: what is wrong with them shows."""
    assert ratio(make_tiny_model(tmp_path, "wide"), 256) == pytest.approx(1, abs=0.1)


@pytest.mark.soak  # Without OpenBLAS it computes for minutes.
def test_a_model_that_people_use(smollm2_dir: Path) -> None:
    assert ratio(smollm2_dir, 256) == pytest.approx(1, abs=0.1)


@pytest.mark.conformance
def test_an_embedding_model(minilm_dir: Path) -> None:
    assert ratio(minilm_dir, 256) == pytest.approx(1, abs=0.1)
