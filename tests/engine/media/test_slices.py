"""A large picture is encoded in slices of the blocks of a model's eyes: what comes out is the same,
and other rows decode between them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from lmx.worker.mlx.media.slices import Part, Slicer
from lmx.worker.mlx.media.spans import MediaSpans
from tests.support.models.media_models import make_media_model
from tests.support.rigs.device import near
from tests.support.rigs.engine_rig import spec_of
from tests.support.rigs.media_check import MediaModel, picture
from tests.support.rigs.seeing_rig import Seeing

WHOLE_S = 1e9
LARGE = picture(1, 448, 448)
"""1024 patches for Qwen2.5-VL, all of which some blocks attend to at once."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_media_model(tmp_path_factory.mktemp("models") / "qwen2_5_vl", "qwen2_5_vl")
    file = folder / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    settings["size"]["longest_edge"] = 1 << 22
    file.write_text(json.dumps(settings))
    return folder


def test_a_large_picture_is_the_same_in_slices(folder: Path) -> None:
    model = MediaModel(folder)
    media = model.encode("ab", LARGE, "cd").media
    assert isinstance(media, MediaSpans)
    (span,) = media.spans

    def encoded(part_s: float) -> tuple[int, Any]:
        encoding = model.forward.encode(span, part_s)
        parts = 1
        while not encoding.advance(0.0):
            parts += 1
        return parts, np.array(encoding.features.embeddings)

    blocks, whole = encoded(WHOLE_S)
    parts, sliced = encoded(1e-4)
    # What was measured of the first slices decides of what size the next picture's are.
    again_parts, again = encoded(1e-4)
    assert parts > 20 * blocks and again_parts > 2 * blocks
    for found in (sliced, again):
        assert np.abs(found - whole).max() < 1e-4 * np.abs(whole).max()


def test_other_rows_decode_between_the_slices(folder: Path) -> None:
    engine = Seeing(spec_of(folder))
    talking = engine.admit("Tell me a story.", max_tokens=2000)
    engine.until(lambda: engine.tokens[talking])
    seeing = engine.ask(engine.prompt("What is it?", LARGE), 2)
    steps = 0
    while seeing not in engine.started:
        output = engine.step()
        if output.media_tokens:
            steps += 1
            assert engine.step().tokens, "the other row waits for two parts in a row"
    # Without slices it would be one for each of the two blocks of its eyes, and one more.
    assert steps > 10
    engine.remove(talking)


class Rows(nn.Module):  # type: ignore[misc]
    """Computes each row alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def __call__(self, x: mx.array) -> mx.array:
        made: mx.array = nn.gelu(self.layer(x))
        return made


class Mixing(Rows):
    """Adds what is next to a row to it."""

    def __call__(self, x: mx.array) -> mx.array:
        made: mx.array = self.layer(x + mx.concatenate([x[-1:], x[:-1]]))
        return made


class Tower(nn.Module):  # type: ignore[misc]
    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = list(modules)


def written(tower: Tower, call: Callable[[], mx.array]) -> tuple[list[Part], mx.array]:
    slicer = Slicer(tower.modules(), tower.modules())
    with slicer.recording(1e-7) as parts:
        made = call()
    return parts, made


@pytest.mark.parametrize(("module", "kinds"), [(Rows(), {"Rows"}), (Mixing(), {"Linear"})])
def test_only_what_computes_each_row_alone_is_cut_by_rows(module: Rows, kinds: set[str]) -> None:
    x = mx.random.normal((40, 8), key=mx.random.key(1))
    whole = module(x)
    parts, made = written(Tower(module), lambda: module(x))
    assert {kind for part in parts for kind in part.kinds} == kinds
    assert len(parts) > 10
    assert mx.allclose(made, whole, atol=near(1e-5)).item()


@pytest.mark.parametrize("mask", [None, "array", "causal"])
def test_attention_is_cut_by_its_queries(mask: str | None) -> None:
    key = mx.random.split(mx.random.key(2), 4)
    queries, keys, values = (mx.random.normal((1, 2, 40, 8), key=each) for each in key[:3])
    given = mx.random.normal((1, 1, 40, 40), key=key[3]) if mask == "array" else mask

    def attend() -> mx.array:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=given)

    whole = attend()
    parts, made = written(Tower(), attend)
    # A mask that is said by its name is one of the whole.
    assert (len(parts) > 10) == (mask != "causal")
    assert mx.allclose(made, whole, atol=near(1e-5)).item()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv3d(3, 8, (2, 4, 4), stride=(2, 4, 4)), (40, 2, 4, 4, 3)),
        (nn.Conv2d(3, 8, 4, stride=4), (1, 160, 8, 3)),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), (40, 8, 8, 3)),
        (nn.Conv1d(3, 8, 3, padding=1), (1, 40, 3)),
    ],
)
def test_convolutions_are_cut_where_nothing_overlaps(layer: nn.Module, shape: Any) -> None:
    x = mx.random.normal(shape, key=mx.random.key(3))
    whole = layer(x)
    parts, made = written(Tower(layer), lambda: layer(x))
    assert (len(parts) > 10) == (not isinstance(layer, nn.Conv1d))
    assert mx.allclose(made, whole, atol=near(1e-5)).item()


def test_an_encoding_that_is_slow_throughout_makes_the_next_one_dearer_once() -> None:
    """Of another program that has the device for a while, each part of it is slow."""
    layer = nn.Linear(8, 8)
    slicer = Slicer([layer], [layer])
    x = mx.zeros((1000, 8))
    part_s = slicer._cost.seconds("Linear", 64_000) / 80

    def recorded() -> list[Part]:
        with slicer.recording(part_s) as parts:
            layer(x)
        return parts

    before = len(recorded())
    for _ in range(30):
        slicer.computed(Part(x, 0.6 * part_s, frozenset({"Linear"})), 1.0)
    assert before < len(recorded()) <= 2 * before + 2
    slicer.computed(Part(x, 0.6 * part_s, frozenset({"Linear"})), 1.0)
    assert len(recorded()) > 2 * before + 2


def test_nothing_stays_replaced() -> None:
    plain = nn.Linear.__call__, mx.fast.scaled_dot_product_attention, mx.eval, Rows.__call__
    slicer = Slicer(*[Tower(Rows()).modules()] * 2)
    with pytest.raises(RuntimeError, match="refused"), slicer.recording(1.0):
        assert nn.Linear.__call__ is not plain[0]
        raise RuntimeError("refused")
    found = nn.Linear.__call__, mx.fast.scaled_dot_product_attention, mx.eval, Rows.__call__
    assert found == plain
