"""The engine that is to load a model says what the model takes."""

import itertools
from pathlib import Path

import pytest

from lmx.protocol.errors import LmxError
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.memory.inspect_main import inspect, read_model_files
from lmx.supervisor.memory.plan import plan_memory
from lmx.supervisor.state.home import Home
from tests.support.models.model_folders import write_model

ENGINE = """
from lmx.protocol.models.memory import Activations, KvLayers, MemoryModel

def estimate(folder, config, kind):
    layers = (KvLayers(config.layers, 100, step_tokens=16),)
    return MemoryModel(1000, 20, 3, layers, Activations(10, False, 5, 0, 1, 7))

def create(spec):
    raise NotImplementedError
"""

NUMBERS = itertools.count()


def engine(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write an engine's module, and return its name."""
    name = f"an_engine_{next(NUMBERS)}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    return f"{name}:create"


def test_its_figures_are_what_is_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = engine(tmp_path, ENGINE, monkeypatch)
    folder = write_model(tmp_path / "m", num_hidden_layers=3, max_position_embeddings=5000)
    settings = {"engine": name, "concurrency": 2, "prefix_cache": {"enabled": False}}
    model = ModelConfig.model_validate({"id": "m", "source": str(folder), **settings})
    found = inspect(question_of(model), Home(tmp_path))
    assert found.problem is None
    assert found.files is not None
    plan = plan_memory(model, ModelKind.CHAT, found.files, None, 2**40, None)[1]
    assert plan.context_tokens == 5000
    assert plan.static_bytes == 1020
    assert plan.kv_cache_bytes == 2 * 3 * 100 * 5008, "whole steps of 16 tokens"
    growth_bytes = 2 * 3 * 100 * 16
    assert plan.activation_bytes == 10 * 5 + 2 * 7 + growth_bytes + 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def create(spec): ...", "has no attribute 'estimate'"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("def estimate(*_): raise RecursionError('deep')", "deep"),
        ("def estimate(*_): return 3", "can't be read as a model"),
        (ENGINE.replace("1000", "-1"), "weights_bytes would be -1"),
        (ENGINE.replace("100,", "2**60,"), "a layer's cache is beyond any memory"),
    ],
)
def test_an_engine_that_does_not_answer_is_a_problem_of_its_models(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = engine(tmp_path, text, monkeypatch)
    model = ModelConfig(id="m", source=str(write_model(tmp_path / "m")), engine=name)
    assert why in (inspect(question_of(model), Home(tmp_path)).problem or "")


def test_another_engine_is_another_question() -> None:
    model = ModelConfig(id="m", source="/m")
    asked = question_of(model)
    assert asked.same_model(question_of(model, "/m"))
    assert not asked.same_model(question_of(model.model_copy(update={"engine": "a:b"})))


def test_what_is_not_a_model_is_said_so(tmp_path: Path) -> None:
    def read() -> None:
        read_model_files(tmp_path, ModelKind.CHAT, MLX_ENGINE)

    with pytest.raises(LmxError, match="does not exist"):
        read_model_files(tmp_path / "none", ModelKind.CHAT, MLX_ENGINE)
    (tmp_path / "file").touch()
    with pytest.raises(LmxError, match="is not a folder"):
        read_model_files(tmp_path / "file", ModelKind.CHAT, MLX_ENGINE)
    with pytest.raises(LmxError, match=r"no config\.json"):
        read()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LmxError, match=r"dangling\.safetensors can't be read"):
        read()
