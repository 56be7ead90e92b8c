"""What a folder's config.json tells people."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.host import rdma
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.memory.inspect_main import inspect
from lmx.supervisor.memory.inspection import ModelFacts, Question
from lmx.supervisor.memory.plan import estimate_memory
from lmx.supervisor.state.home import Home
from tests.support.models.model_folders import write_model


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"model_type": "qwen3", "max_position_embeddings": 40960}, ModelFacts("qwen3", 40960)),
        (
            {
                "model_type": "gemma3",
                "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 99},
            },
            ModelFacts("gemma3_text", 99),
        ),
        ({"model_type": "llava", "text_config": {"hidden_size": 3}}, ModelFacts("llava", None)),
        ({}, ModelFacts()),
    ],
)
def test_family_and_context_are_the_text_models(
    config: Any, facts: ModelFacts, tmp_path: Path
) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").write_text(json.dumps(config))
    os.utime(folder / "config.json", (5.0, 1_700_000_000.7))
    found = inspect(Question(str(folder), str(folder)), Home(tmp_path))
    files = sum(file.stat().st_size for file in folder.iterdir())
    assert files > 0
    shown = replace(facts, created_s=1_700_000_000, media=(), disk_bytes=files, infills=False)
    assert found.facts == shown
    assert found.problem is None


@pytest.mark.parametrize("family", ["\ud800", "a\nb", "x" * 81, ["llama"], 3])
def test_a_family_that_is_no_name_is_said(family: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path, model_type=family)
    found = inspect(Question(str(folder), str(folder)), Home(tmp_path))
    assert found.problem == f"{folder / 'config.json'} makes no sense: model_type is no name"


def test_a_model_that_can_not_be_divided_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    config = {"num_attention_heads": 9, "intermediate_size": 96, "num_key_value_heads": 3}
    folder = write_model(tmp_path, model_type="llama", **config)
    found = inspect(Question(str(folder), str(folder), ranks=2), Home(tmp_path))
    assert found.problem is not None
    assert "its 9 attention heads don't divide by 2" in found.problem
    assert inspect(Question(str(folder), str(folder), ranks=3), Home(tmp_path)).problem is None


def test_a_model_over_rdma_is_refused_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"num_attention_heads": 4, "intermediate_size": 96, "num_key_value_heads": 2}
    folder = write_model(tmp_path, model_type="llama", **config)
    question = Question(str(folder), str(folder), ranks=2, rdma_devices=("rdma_en5",))
    for there, said in (((), "Set backend to ring"), (("rdma_en2",), "has no rdma_en5")):
        monkeypatch.setattr(rdma, "read_devices", lambda there=there: there)
        assert said in (inspect(question, Home(tmp_path)).problem or "")
    monkeypatch.setattr(rdma, "read_devices", lambda: ("rdma_en5",))
    assert inspect(question, Home(tmp_path)).problem is None


def test_a_broken_or_missing_file_shows_nothing(tmp_path: Path) -> None:
    question = Question(str(tmp_path), str(tmp_path))
    assert inspect(question, Home(tmp_path)).facts == ModelFacts()
    for text in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        found = inspect(question, Home(tmp_path))
        assert found.facts == ModelFacts()
        assert str(tmp_path / "config.json") in (found.problem or "")


def test_adapters_are_counted_with_their_model_and_cost_themselves_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    (good / "adapter_config.json").write_text('{"lora_parameters": {"scale": 2}}')
    (good / "adapters.safetensors").write_bytes(b"x" * 1000)
    home, question = Home(tmp_path), Question(str(folder), str(folder))
    plain = inspect(question, home)
    found = inspect(replace(question, adapters=(str(bad), str(good))), home)
    assert plain.files is not None
    assert found.files is not None
    assert (plain.files.adapters_bytes, found.files.adapters_bytes) == (0, 1000)
    assert found.files.revision != plain.files.revision
    assert (plain.adapter_problems, found.problem) == ((), None)
    assert "there is no folder" in (found.adapter_problems[0] or "")
    assert found.adapter_problems[1] is None
    model = ModelConfig(id="m", source=str(folder))
    needs = [
        estimate_memory(model, ModelKind.CHAT, files, None, 1 << 40).static_bytes
        for files in (plain.files, found.files)
    ]
    assert needs[1] - needs[0] == 1000
    assert found.adapter_paths == (str(bad), str(good))
    # One that was not fetched yet takes nothing, and nothing is wrong with it.
    far = inspect(replace(question, adapters=(f"{tmp_path.name}/far", str(good))), home)
    assert (far.adapter_paths, far.adapter_problems) == ((None, str(good)), (None, None))
    assert far.files == found.files
    writes_not = replace(question, adapters=(str(good),), kind=ModelKind.EMBEDDING)
    assert "models that write" in (inspect(writes_not, home).adapter_problems[0] or "")
