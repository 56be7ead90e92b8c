"""How exact the tests of the engine are, on a CPU and on a GPU."""

from pathlib import Path

from tests.support.rigs.device import _COMPARING, may_differ, near

ENGINE = Path(__file__).parents[2] / "engine"


def test_only_a_gpu_may_be_less_exact() -> None:
    assert (near(1e-6, on_gpu=False), near(1e-2, on_gpu=True)) == (1e-6, 1e-2)
    assert near(1e-6, on_gpu=True) == 1e-3


def test_only_tests_of_the_engine_that_compare_tokens_may_find_others() -> None:
    assert {path.name for path in ENGINE.iterdir()} >= _COMPARING
    batch = ENGINE / "decoding" / "test_batch.py"
    assert may_differ(batch, on_gpu=True)
    assert not may_differ(batch, on_gpu=False)
    assert not may_differ(ENGINE / "structure" / "test_schemas.py", on_gpu=True)
    assert not may_differ(Path("/tests/unit/worker/mlx/decoding/test_on_gpu.py"), on_gpu=True)
