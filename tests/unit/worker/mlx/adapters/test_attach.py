"""Whether an adapter's change reaches the layers that a model really calls."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from lmx.protocol.messages.specs import AdapterSpec
from lmx.worker.mlx.adapters.attach import Adapters, attach_adapters, layer_name
from lmx.worker.mlx.adapters.layers import ActiveAdapter
from tests.support.models.tiny_adapters import write_adapter


class Language(nn.Module):  # type: ignore[misc]  # mlx has no types.
    """Calls one of its layers, reads the weights of another, and has compiled a third."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read, self.compiled, self.single = (nn.Linear(4, 4) for _ in range(4))
        self._compiled = mx.compile(lambda x: self.compiled(x))

    def __call__(self, x: mx.array) -> mx.array:
        y = self._compiled(self.called(x)) @ self.read.weight.T
        made: mx.array = self.single(y) if len(x) == 1 else y @ self.single.weight.T
        return made


class Model:
    def __init__(self) -> None:
        self.language_model = Language()


def attached(folder: Path, model: Any, layer: str, b: float = 1.0) -> tuple[Adapters, Any]:
    config = {"lora_parameters": {"scale": 1.0}}
    weights = {f"{layer}.lora_a": mx.ones((4, 2)), f"{layer}.lora_b": b * mx.ones((2, 4))}
    write_adapter(folder, config, weights)
    active = ActiveAdapter()

    def run(adapter: str, tokens: int) -> Any:
        active.adapter_id = adapter
        return model.language_model(mx.ones((tokens, 4)))

    def try_out(adapter: str, tokens: int) -> None:
        run(adapter, tokens)

    return attach_adapters(model, [AdapterSpec("a", str(folder))], active, try_out), run


def test_a_layer_that_is_called_is_changed_for_the_adapter_alone(tmp_path: Path) -> None:
    model = Model()
    before = model.language_model(mx.ones((1, 4))).tolist()
    names = [name for name, _ in model.language_model.named_modules()]
    found, run = attached(tmp_path, model, "model.called")
    assert found.problems == {"a": None}
    assert run("", 1).tolist() == before
    assert run("a", 1).tolist() != before
    assert [name for name, _ in model.language_model.named_modules()] == names
    assert isinstance(model.language_model.called, nn.Linear)
    assert set(model.language_model.called.parameters()) == {"weight", "bias"}


@pytest.mark.parametrize("layer", ["read", "compiled", "single"])
def test_a_layer_that_is_not_called_each_time_is_reported(tmp_path: Path, layer: str) -> None:
    found, run = attached(tmp_path / "1", Model(), layer)
    assert f"it changes {layer}, which this model computes" in (found.problems["a"] or "")
    assert run("a", 1).tolist() == run("", 1).tolist()
    # What training never reached has nothing to say.
    found, _ = attached(tmp_path / "2", Model(), layer, b=0.0)
    assert found.problems == {"a": None}


def test_an_adapters_salt_is_nobody_elses() -> None:
    adapters = Adapters({"a": None, "b": None}, {"a": "1" * 32, "b": "2" * 32})
    salts = ["", "s", "\0", "\0a", adapters.prefix_salt("a", ""), adapters.prefix_salt("", "\0")]
    made = [adapters.prefix_salt(name, salt) for name in ("", "a", "b") for salt in salts]
    assert len(set(made)) == len(made)
    assert adapters.prefix_salt("", "s") == "s"


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.q",
        "language_model.model.layers.0.q",
        "language_model.inner.model.layers.0.q",
        "base_model.model.model.language_model.layers.0.q",
    ],
)
def test_a_layer_has_one_name_however_the_model_is_wrapped(name: str) -> None:
    assert layer_name(name) == "layers.0.q"


def test_a_wrapper_alone_stays_a_name() -> None:
    assert layer_name("model.vision_tower.layers.0.q") == "vision_tower.layers.0.q"
    assert layer_name("model") == "model"
