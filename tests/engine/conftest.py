"""Every load of these tests tries what its model can do: some of them change what a model computes,
without another file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmx.worker.mlx import engine
from tests.support.models.tiny_models import make_tiny_model

_MAKE_TRIALS = engine._make_trials


@pytest.fixture(autouse=True, scope="session")
def nothing_is_remembered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_make_trials", lambda *_: None)
        yield


@pytest.fixture
def real_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is remembered after all."""
    monkeypatch.setattr(engine, "_make_trials", _MAKE_TRIALS)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, of which no test changes a file."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), "llama")
