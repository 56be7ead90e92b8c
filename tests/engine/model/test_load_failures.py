"""What is told of folders that the libraries can't load: their own exceptions, but for those of
classes and devices that fail in what they compute."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models.llama
import mlx_vlm.models.llama.llama
import numpy as np
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import ModelKind
from lmx.worker.lifecycle import load_engine
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.service.failures import LoadFailure, load_failure
from tests.support.models.media_models import make_media_model
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_encoders import make_bert
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import spec_of


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
        configured(rope_theta="x"),
        configured(model_type="olmo"),  # mlx-lm's module ends the process.
    ],
)
def test_a_bad_folder_is_not_tried_again(
    tmp_path: Path, tiny_dir: Path, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_dir, folder)
    harm(folder)
    failure = failure_of(folder, ModelKind.CHAT)
    assert (failure.code, failure.permanent) == (ErrorCode.MODEL_SOURCE_INVALID, True)


def test_a_processor_that_is_refused_is_not_to_be_fetched_again(tmp_path: Path) -> None:
    folder = make_media_model(tmp_path / "model", "gemma4")
    path = folder / "processor_config.json"
    whole = path.read_text()
    settings = json.loads(whole)
    settings["image_processor"]["max_soft_tokens"] = 77
    path.write_text(json.dumps(settings))
    failure = failure_of(folder, ModelKind.CHAT)
    assert (failure.code, failure.permanent) == (ErrorCode.MODEL_SOURCE_INVALID, True)
    assert "`max_soft_tokens` must be one of" in failure.message
    assert "choose another conversion" in failure.message
    assert "fetch the" not in failure.message
    path.write_text(whole)
    take_the_tokenizer_away(folder)
    assert (
        "fetch the model again, with its tokenizer's" in failure_of(folder, ModelKind.CHAT).message
    )


def test_a_model_of_another_kind_is_reported_in_words(tmp_path: Path, tiny_dir: Path) -> None:
    encoder = make_bert(tmp_path / "bert")
    for folder, kind in ((encoder, ModelKind.CHAT), (tiny_dir, ModelKind.EMBEDDING)):
        failure = failure_of(folder, kind)
        assert failure.permanent
        assert f"can't be served as {kind.value}" in failure.message


LLAMAS = (mlx_lm.models.llama.Model, mlx_vlm.models.llama.llama.LanguageModel)
NO_METAL = RuntimeError("[metal_kernel] No Metal back-end.")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder that both libraries can load."""
    return make_text_model(tmp_path / "text", "llama")


def broken(monkeypatch: pytest.MonkeyPatch, of: type, error: Exception) -> None:
    """Let a class of a library be one that can be made and not called."""

    def raise_it(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(of, "__call__", raise_it)


def test_both_libraries_are_tried_with_a_token(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_checkpoint(text).library == "mlx-lm"
    broken(monkeypatch, LLAMAS[0], TypeError("of mlx-lm"))
    opened = open_checkpoint(text)
    assert (opened.library, opened.forward.vocabulary_size) == ("mlx-vlm", 288)


@pytest.mark.parametrize(
    ("errors", "reported"),
    [
        ((TypeError("of mlx-lm"), KeyError("of mlx-vlm")), "of mlx-lm; KeyError: 'of mlx-vlm'"),
        ((NO_METAL, NO_METAL), "serve it on a Mac"),
        ((NO_METAL, ValueError("Missing 2 parameters")), "serve it on a Mac"),
        ((TypeError("a"), ValueError("Model type llama not supported.")), "(TypeError: a)"),
        ((TypeError("a"), ValueError("Missing 2 parameters")), "(TypeError: a; ValueError: M"),
    ],
)
def test_a_model_that_takes_no_token_is_refused_in_words(
    text: Path, monkeypatch: pytest.MonkeyPatch, errors: tuple[Exception, Exception], reported: str
) -> None:
    for of, error in zip(LLAMAS, errors, strict=True):
        broken(monkeypatch, of, error)
    failure = failure_of(text, ModelKind.CHAT)
    assert (failure.code, failure.permanent) == (ErrorCode.MODEL_SOURCE_INVALID, True)
    assert reported in failure.message
    assert "choose" in failure.message


def caused(cause: Exception) -> Exception:
    error = ValueError("it didn't work")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[malloc] Unable to allocate 9 bytes."),
        caused(MemoryError()),
        caused(RuntimeError("[METAL] Command buffer execution failed: Innocent Victim")),
        RuntimeError("anything"),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(
    text: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """And with the same library: another one would serve the model until then."""
    broken(monkeypatch, LLAMAS[0], error)
    assert not failure_of(text, ModelKind.CHAT).permanent


def test_a_model_that_computes_no_numbers_is_refused(tmp_path: Path) -> None:
    file = weights_of(make_tiny_model(tmp_path, "llama"))
    read: Any = mx.load(str(file))
    weights = {name: mx.array(np.array(each)) for name, each in read.items()}
    (damaged,) = [name for name in weights if "layers.1" in name and "o_proj.weight" in name]
    weights[damaged] = mx.full(weights[damaged].shape, mx.nan)
    mx.save_safetensors(str(file), weights, {"format": "mlx"})
    failure = failure_of(tmp_path, ModelKind.CHAT)
    assert failure.code is ErrorCode.MODEL_SOURCE_INVALID
    assert "computes something else than numbers" in failure.message
