"""Layers are handed to the device one by one where that pays, and never where it can't be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.utils import load
from tiny_models import CONFIGS, make_tiny_model

from lmx.worker.mlx.model import early_start
from lmx.worker.mlx.model.early_start import start_early
from lmx.worker.mlx.model.forward import Forward

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(mx.metal.is_available(), reason="a GPU has nothing to gain"),
]
LAYERS = CONFIGS["llama"]["num_hidden_layers"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama")


@pytest.fixture
def forward(folder: Path) -> Forward:
    return Forward(load(str(folder))[0])


@pytest.mark.parametrize(("thin_bytes", "least_rows"), [(1 << 20, 16), (0, 1)])
def test_each_layer_but_the_last_is_handed_over_where_the_device_is_slower(
    forward: Forward, monkeypatch: pytest.MonkeyPatch, thin_bytes: int, least_rows: int
) -> None:
    monkeypatch.setattr(early_start, "_THIN_LAYER_BYTES", thin_bytes)
    tokens = mx.array([[5 + row] for row in range(least_rows)])
    plain = forward.decode(tokens, forward.new_cache(), None)
    start_early(forward)
    handed: list[mx.array] = []
    monkeypatch.setattr(mx, "async_eval", handed.append)
    early = forward.decode(tokens, forward.new_cache(), None)
    assert len(handed) == LAYERS - 1
    assert mx.array_equal(early, plain)
    if least_rows > 1:
        forward.decode(tokens[1:], forward.new_cache(), None)
    prompt = mx.array([[1, 2, 3]])
    forward.prompt(prompt, forward.new_cache(), forward.embed(prompt))
    assert len(handed) == LAYERS - 1


def test_a_model_that_compiles_its_layers_stays_as_it_is(forward: Forward) -> None:
    layers = forward.language_model.layers
    plain = type(layers[0])

    class Compiled(type(forward.language_model)):  # type: ignore[misc]  # Its class is the model's.
        def __call__(self, tokens: mx.array, cache: Any = None, **more: Any) -> Any:
            @mx.compile
            def run(tokens: mx.array) -> mx.array:
                logits: mx.array = super(Compiled, self).__call__(tokens, **more).logits
                return logits

            return run(tokens)

    forward.language_model.__class__ = Compiled
    start_early(forward)
    assert forward.early_start is None
    assert {type(layer) for layer in layers} == {plain}
    assert forward.decode(mx.array([[5], [6]]), [], None).shape[0] == 2
