"""Adapters on real models: rows have what mlx-lm makes of the adapter, whoever runs beside them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_vlm.generate.common import generation_stream

from lmx.protocol.messages.data import Generate, Sampling
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.engine.values import BeamSearch
from lmx.worker.mlx.model.load import LoadedModel, load_model
from lmx.worker.scheduling.prepare import prepare
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_adapters import (
    KEYS,
    SCALE,
    adapted_logits,
    as_peft,
    make_adapter,
    write_adapter,
)
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, Plain, spec_of

PROMPT = [7 * n % 251 + 1 for n in range(40)]
TOLERANCE = 0.01
"""A share of the logits' spread: beside rounding, a quantized layer's own kernel."""


def loaded_with(base: Path, **adapters: Path) -> LoadedModel:
    with mx.stream(generation_stream):
        return load_model(spec_of(base, adapters=adapters), lambda *_: None)


def logits_of(loaded: LoadedModel, adapter: str, prompt: Sequence[int] = PROMPT) -> Any:
    """The logits after each token: a whole prompt but for the last token, which is decoded."""
    with mx.stream(generation_stream):
        forward = loaded.forward.with_adapter(adapter)
        cache, tokens = forward.new_cache(), mx.array([list(prompt[:-1])])
        first = forward.prompt(tokens, cache, forward.embed(tokens))[0]
        last = forward.decode(mx.array([[prompt[-1]]]), cache, None)[0]
        return np.array(mx.concatenate([first, last]).astype(mx.float32))


def off(logits: Any, right: Any) -> float:
    spread = np.linalg.norm(right - right.mean(axis=-1, keepdims=True), axis=-1)
    return float((np.linalg.norm(logits - right, axis=-1) / spread).max())


@pytest.mark.parametrize(
    ("model_type", "bits", "keys", "dora"),
    [
        ("llama", None, (*KEYS, "lm_head"), False),
        ("gemma", 8, ("model.embed_tokens",), False),  # It is also the head.
        ("llama", None, KEYS, True),
        ("llama", 4, KEYS, False),
        ("llama", 8, KEYS, True),
        ("qwen2", None, KEYS, True),  # Its projections have biases.
        ("qwen3_moe", None, ("mlp.switch_mlp.up_proj", "mlp.switch_mlp.down_proj"), False),
        ("qwen3_moe", 4, ("mlp.switch_mlp.gate_proj", "mlp.gate"), False),
    ],
)
def test_an_adapter_changes_the_model_as_in_mlx_lm(
    tmp_path: Path, model_type: str, bits: int | None, keys: Sequence[str], dora: bool
) -> None:
    base = make_text_model(tmp_path / "base", model_type, bits=bits)
    adapter = make_adapter(tmp_path / "lora", base, keys=keys, dora=dora)
    plain = logits_of(loaded_with(base), "")
    loaded = loaded_with(base, sql=adapter)
    assert (loaded.library, loaded.facts.adapters) == ("mlx-lm", {"sql": None})
    expected = adapted_logits(base, adapter, PROMPT)
    assert off(logits_of(loaded, "sql"), expected) < TOLERANCE
    assert off(plain, expected) > 10 * TOLERANCE
    np.testing.assert_array_equal(logits_of(loaded, ""), plain)


@pytest.mark.parametrize("dora", [False, True])
def test_pefts_form_is_the_same_adapter(tmp_path: Path, dora: bool) -> None:
    base = make_text_model(tmp_path / "base", "llama")
    adapter = make_adapter(tmp_path / "lora", base, dora=dora)
    loaded = loaded_with(base, one=adapter, other=as_peft(tmp_path / "peft", adapter))
    assert off(logits_of(loaded, "other"), logits_of(loaded, "one")) < 1e-5


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_an_adapter_of_a_model_of_mlx_vlms_class(tmp_path: Path, kind: str) -> None:
    base = make_tiny_model(tmp_path / "base", kind)
    layers = [f"language_model.model.layers.{n}.mlp.{key}" for n in (0, 2) for key in ("up_proj",)]
    mx.random.seed(3)
    a = {layer: 0.2 * mx.random.normal((64, 4)) for layer in layers}
    b = {layer: 0.2 * mx.random.normal((4, 128)) for layer in layers}
    weights = {f"{layer}.lora_a": each for layer, each in a.items()}
    weights |= {f"{layer}.lora_b": each for layer, each in b.items()}
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": SCALE}}
    write_adapter(tmp_path / "lora", config, weights)
    fused = Plain(base)
    known = dict(tree_flatten(fused._model.parameters()))
    changed = [
        (f"{layer}.weight", known[f"{layer}.weight"] + SCALE * (a[layer] @ b[layer]).T)
        for layer in layers
    ]
    fused._model.load_weights(changed, strict=False)
    loaded = loaded_with(base, sql=tmp_path / "lora")
    assert (loaded.library, loaded.facts.adapters) == ("mlx-vlm", {"sql": None})
    expected = np.array(fused.logits(PROMPT))
    assert off(logits_of(loaded, "sql"), expected) < TOLERANCE
    assert off(logits_of(loaded, ""), expected) > 10 * TOLERANCE


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_model(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(folder / name, base, seed=seed) for seed, name in enumerate(["x", "y"])
    }


@pytest.mark.parametrize("speculation", [None, SpeculationSpec()])
def test_rows_of_different_adapters_are_each_as_alone(
    base: Path, adapters: dict[str, Path], speculation: SpeculationSpec | None
) -> None:
    runner = EngineRunner(spec_of(base, adapters=adapters, speculation=speculation))
    asked = [("", HOT), ("x", HOT), ("y", HOT), ("x", GREEDY), ("", GREEDY)]
    alone = [runner.alone(PROMPT, how, 12, adapter=name) for name, how in asked]
    assert len({tuple(tokens) for tokens in alone}) == 5
    rows = [runner.admit(PROMPT, how, 12, adapter=name) for name, how in asked]
    runner.finish()
    assert [runner.tokens[row] for row in rows] == alone
    # A single beam takes the likeliest tokens.
    beam = BeamSearch(1, 1.0, frozenset())
    searches = [runner.admit(PROMPT, GREEDY, 12, beam=beam, adapter=name) for name in ("x", "")]
    runner.finish()
    assert [list(runner.found[row][0].tokens) for row in searches] == alone[3:]


def test_lanes_of_adapters_advance_alike(base: Path, adapters: dict[str, Path]) -> None:
    runner = EngineRunner(spec_of(base, adapters=adapters))
    rows = [runner.admit(PROMPT, GREEDY, 400, adapter=name) for name in ("", "x", "y")]
    while not all(runner.tokens[row] for row in rows):
        runner.step()
    before = [len(runner.tokens[row]) for row in rows]
    for _ in range(20):
        runner.step()
    assert [len(runner.tokens[row]) - n for row, n in zip(rows, before, strict=True)] == [20] * 3
    runner.clear()


def test_computed_prompts_are_of_one_adapter_alone(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    cold = EngineRunner(spec_of(base, adapters=adapters))
    expected = [cold.alone(PROMPT, GREEDY, 6, adapter=name) for name in ("", "x", "y")]
    spec = spec_of(
        base, adapters=adapters, prefix_cache=PrefixCacheSpec(64 << 20, str(tmp_path), 64 << 20)
    )
    runner = EngineRunner(spec)

    def cached(adapter: str, salt: str = "") -> int:
        row = runner.admit(PROMPT, GREEDY, 6, adapter=adapter, cache_salt=salt)
        runner.finish()
        assert runner.tokens[row] == expected[["", "x", "y"].index(adapter)]
        return runner.started[row].cached_tokens

    assert [cached(name) for name in ("", "x", "y")] == [0, 0, 0]
    assert [cached(name) for name in ("", "x", "y")] == [len(PROMPT) - 1] * 3
    assert cached("x", "tenant") == 0
    # Nobody finds an adapter's prompts by a salt.
    inner: Any = runner.generator
    assert cached("", inner._adapters.prefix_salt("x", "")) == 0
    # All at once: none waits for another one's prompt, and takes it over.
    other = [token + 1 for token in PROMPT]
    rows = [runner.admit(other, GREEDY, 6, adapter=name) for name in ("", "x", "y")]
    runner.finish()
    assert [runner.started[row].cached_tokens for row in rows] == [0, 0, 0]
    runner.resident.close()
    runner = EngineRunner(spec)
    assert [cached(name) for name in ("y", "x", "")] == [len(PROMPT) - 1] * 3


def test_an_adapter_that_does_not_fit_costs_itself_alone(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    narrow = make_tiny_model(tmp_path / "narrow", "llama")
    wrong = {name: tmp_path / name for name in ("shape", "layer", "full", "more", "nowhere")}
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": SCALE}}
    pair = {"lora_a": mx.ones((64, 4)), "lora_b": mx.ones((4, 64))}

    def write(name: str, layer: str, **other: mx.array) -> None:
        weights = {f"{layer}.{leaf}": array for leaf, array in (pair | other).items()}
        write_adapter(wrong[name], config, weights)

    write("shape", "model.layers.0.self_attn.q_proj", lora_b=mx.ones((4, 63)))
    write("layer", "model.layers.77.self_attn.q_proj")
    write("more", "model.layers.0.self_attn.q_proj", bias=mx.ones((64,)))
    write("full", "model.layers.0.self_attn.q_proj")
    (wrong["full"] / "adapter_config.json").write_text('{"fine_tune_type": "full"}')
    runner = EngineRunner(spec_of(base, adapters=wrong | {"whole": narrow} | adapters))
    reported = runner.facts.adapters
    for name, words in {
        "shape": "(64, 4) and (4, 63), and this model needs (64, 4) and (4, 64)",
        "layer": "layers.77.self_attn.q_proj, which the model doesn't have",
        "full": "full fine-tune",
        "more": "which is none of an adapter's matrices",
        "nowhere": "there is no folder",
        "whole": "a whole model and no adapter",
    }.items():
        assert words in (reported[name] or ""), reported[name]
    assert {name: reported[name] for name in adapters} == {"x": None, "y": None}
    assert runner.alone(PROMPT) == EngineRunner(spec_of(base)).alone(PROMPT)
    request = Generate(1, "r", Sampling(), 1, prompt_tokens=(1, 2), adapter="shape")
    for name, code in {"shape": "model_source_invalid", "z": "model_not_found"}.items():
        with pytest.raises(Exception, match=name) as caught:
            prepare(
                runner.generator, runner.facts, spec_of(base), replace(request, adapter=name),
                1, lambda: 1, 0.0,
            )  # fmt: skip
        assert getattr(caught.value, "code", None) == code
