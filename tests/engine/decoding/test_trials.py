"""What a load has found out by trying, the next one of the same model knows."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.messages.specs import SpeculationSpec
from lmx.worker.mlx import engine
from lmx.worker.mlx.batching.batch_engine import BatchEngine
from lmx.worker.mlx.decoding import trials
from lmx.worker.mlx.decoding.batch_mode import BatchMode
from lmx.worker.mlx.decoding.rollback import Blocks, Undo
from lmx.worker.mlx.decoding.trials import Trials
from lmx.worker.mlx.engine import load_generator
from lmx.worker.mlx.model.passes import report_passes_to
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import spec_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_trials: None) -> Path:
    monkeypatch.setenv("LMX_CACHE_DIR", str(tmp_path / "cache"))
    return make_tiny_model(tmp_path / "model", "llama")


def load(folder: Path, **settings: Any) -> tuple[int, Blocks, BatchMode]:
    """Load a model; return how many forward passes that took, and what it can do."""
    passes = 0

    def count() -> None:
        nonlocal passes
        passes += 1

    found: list[tuple[Blocks, BatchMode]] = []

    class Rows(BatchEngine):
        def __init__(self, *given: Any, mode: BatchMode, **named: Any) -> None:
            super().__init__(*given, mode=mode, **named)
            found.append((next(one for one in given if isinstance(one, Blocks)), mode))

    with report_passes_to(count), pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "BatchEngine", Rows)
        load_generator(spec_of(folder, **settings), lambda *_: None).resident.close()
    return passes, *found[-1]


def kept(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "trials").iterdir())


def touched(folder: Path, _: pytest.MonkeyPatch) -> None:
    os.utime(folder / "model.safetensors", (1, 1))


def configured(folder: Path, _: pytest.MonkeyPatch) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 10001.0}))


def renewed(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda name: f"99 of {name}")


def moved(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "another"})


def test_the_second_load_makes_fewer_passes_and_finds_the_same(folder: Path) -> None:
    first, second = load(folder), load(folder)
    assert first[1:] == second[1:] == (Blocks(True, apart=True), BatchMode.BATCHED)
    assert first[0] - second[0] > 20
    # More is tried of a model that drafts.
    assert load(folder, speculation=SpeculationSpec())[0] - second[0] > 20
    assert len(kept(folder)) == 2


@pytest.mark.parametrize("change", [touched, configured, renewed, moved])
def test_a_change_of_the_model_the_libraries_or_the_device_is_tried(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    first = load(folder)
    change(folder, monkeypatch)
    assert load(folder) == first


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"right": 1}', b"\xff", None])
def test_a_broken_file_is_replaced(folder: Path, content: bytes | None) -> None:
    one = Trials(folder.parent / "kept", "name")
    blocks = Blocks(True, Undo.REPLAYED, None, True)
    one.keep(blocks)
    path = one.folder / one.name
    whole = path.read_bytes()
    if content is not None:
        path.write_bytes(content)
    else:
        path.unlink()
    assert one.recall() is None
    one.keep(blocks)
    assert path.read_bytes() == whole
    assert one.recall() == blocks


def test_what_is_wrong_is_tried_again_and_the_oldest_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_MOST_FILES", 3)
    Trials(tmp_path, "wrong").keep(Blocks(False))
    assert not list(tmp_path.iterdir())
    for number in range(5):
        Trials(tmp_path, f"name{number}").keep(Blocks(True))
        os.utime(tmp_path / f"name{number}", (number, number))
    assert {path.name for path in tmp_path.iterdir()} == {"name2", "name3", "name4"}


def test_a_place_that_can_not_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one = Trials(tmp_path / "file", "name")
    one.keep(Blocks(True))
    assert one.recall() is None


def test_a_model_that_more_decides_about_is_always_tried(folder: Path) -> None:
    spec = replace(spec_of(folder), allow_checkpoint_code=True)
    passes = []
    for _ in range(2):
        noted: list[None] = []
        with report_passes_to(lambda noted=noted: noted.append(None)):  # type: ignore[misc]
            load_generator(spec, lambda *_: None).resident.close()
        passes.append(len(noted))
    assert passes[0] == passes[1] > 20
