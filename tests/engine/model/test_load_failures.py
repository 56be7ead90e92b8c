"""What is told of folders that mlx-vlm can't load: its own exceptions, not made-up ones."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_rig import spec_of
from tiny_encoders import make_bert
from tiny_models import make_tiny_model

from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import ModelKind
from lmx.worker.factory import load_engine
from lmx.worker.service.failures import LoadFailure, load_failure

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("good"), "llama")


def failure_of(folder: Path, kind: ModelKind) -> LoadFailure:
    spec = dataclasses.replace(spec_of(folder), kind=kind)
    with pytest.raises(Exception) as caught:
        load_engine(spec, lambda _phase, _fraction, _detail: None)
    return load_failure(caught.value, kind)


def weights_of(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


def cut_short(folder: Path) -> None:
    weights = weights_of(folder)
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def fill_with_junk(folder: Path) -> None:
    weights_of(folder).write_bytes(b"\xff" * 200)


def take_away(folder: Path) -> None:
    weights_of(folder).unlink()


def take_the_tokenizer_away(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def configured(**entries: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **entries}
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


@pytest.mark.parametrize(
    "harm",
    [
        cut_short,
        fill_with_junk,
        take_away,
        take_the_tokenizer_away,
        configured(model_type="nosuch"),
        configured(model_type=None),
        configured(num_hidden_layers=4),
        configured(num_hidden_layers=1),
        configured(hidden_size=128),
    ],
)
def test_a_bad_folder_is_not_tried_again(
    tmp_path: Path, good: Path, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    harm(folder)
    failure = failure_of(folder, ModelKind.CHAT)
    assert (failure.code, failure.permanent) == (ErrorCode.MODEL_SOURCE_INVALID, True)


def test_a_model_of_another_kind_is_told_in_words(tmp_path: Path, good: Path) -> None:
    encoder = make_bert(tmp_path / "bert")
    for folder, kind in ((encoder, ModelKind.CHAT), (good, ModelKind.EMBEDDING)):
        failure = failure_of(folder, kind)
        assert failure.permanent
        assert f"can't be served as {kind.value}" in failure.message
