"""How many operations a draw is for a GPU, where each one costs a launch."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.sampling import filters

VOCABULARY = 1280
TOP_P = SequenceSampling(1.0, top_p=0.9)
TYPICAL = SequenceSampling(1.0, typical_p=0.9, top_p=0.9)


def module(monkeypatch: pytest.MonkeyPatch, metal: bool) -> ModuleType:
    """The filters as a machine with or without Metal imports them."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    spec = importlib.util.spec_from_file_location(f"filters_{metal}", filters.__file__)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, found)
    spec.loader.exec_module(found)
    return found


def operations(found: ModuleType, sampling: SequenceSampling, folder: Path) -> int:
    """How many nodes the graph of a row's filters has."""
    kept = found.filter_all(mx.zeros((1, VOCABULARY)), found.Filters.of([sampling]))
    path = folder / "graph.dot"
    mx.export_to_dot(str(path), kept)
    return path.read_text().count("shape=rectangle")


@pytest.mark.parametrize("sampling", [TOP_P, TYPICAL], ids=["top_p", "typical_p"])
def test_the_filters_are_fused_for_a_gpu_and_left_alone_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sampling: SequenceSampling
) -> None:
    fused, plain = (
        operations(module(monkeypatch, metal), sampling, tmp_path) for metal in (True, False)
    )
    assert plain > 200
    assert fused < plain / 2
    assert filters._keep_best.__name__ == "_keep_best", "on this machine they are plain"
