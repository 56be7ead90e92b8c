"""Which models can be served with quantized keys and values, and how near their logits stay."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_vlm.models.base import (
    InputEmbeddingsFeatures,
    create_attention_mask,
    scaled_dot_product_attention,
)
from mlx_vlm.models.cache import KVCache

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.model.forward import Forward, cache_states
from lmx.worker.mlx.model.kv_quantization import quantize_kv
from lmx.worker.mlx.model.load import load_model
from lmx.worker.service.failures import load_failure
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_models import QUANTIZABLE_CONFIGS, make_tiny_model
from tests.support.rigs.engine_rig import spec_of

PROMPT = [token % 90 + 1 for token in range(80)]


def loaded(folder: Path, bits: int | None) -> Forward:
    spec = dataclasses.replace(spec_of(folder), kv_bits=bits)
    return load_model(spec, lambda *_: None).forward


def logits_of(forward: Forward) -> mx.array:
    """After a prompt, and after two more tokens."""
    cache = forward.new_cache()
    found = [
        forward.decode(mx.array([tokens]), cache, None)[0, -1] for tokens in (PROMPT, [5], [6])
    ]
    mx.eval(found, cache_states(cache))
    return mx.stack(found)


def off_by(forward: Forward, plain: mx.array) -> float:
    """How far the logits are off at most, in units of their spread."""
    return float(mx.max(mx.abs(logits_of(forward) - plain)) / mx.std(plain))


def reads_expanded(forward: Forward) -> set[bool]:
    assert forward.kv_quantization is not None
    return {one.expanded for one in forward.kv_quantization.packings if one is not None}


@pytest.mark.parametrize("kind", sorted(QUANTIZABLE_CONFIGS))
def test_logits_stay_near_those_of_the_model(tmp_path: Path, kind: str) -> None:
    folder = make_tiny_model(tmp_path, kind)
    plain = logits_of(loaded(folder, None))
    off = {}
    for bits in (8, 4):
        forward = loaded(folder, bits)
        assert reads_expanded(forward) == {False}
        off[bits] = off_by(forward, plain)
    assert 0 < off[8] < 0.1
    assert off[8] < off[4] < 1.5


class _Toy(nn.Module):  # type: ignore[misc]  # mlx has no types.
    """A model of one layer of attention, which reads its cache as ``read`` says."""

    def __init__(self, read: Callable[[Any, Any], Any], sinks: mx.array | None = None) -> None:
        super().__init__()
        mx.random.seed(1)
        self.read, self.sinks = read, sinks
        self.embedding = mx.random.normal((100, 64))
        self.projection = mx.random.normal((3, 64, 64)) / 8
        self.language_model = self

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def get_input_embeddings(self, tokens: mx.array) -> Any:
        return InputEmbeddingsFeatures(inputs_embeds=self.embedding[tokens])

    def __call__(self, tokens: mx.array, cache: Any = None, **_: Any) -> mx.array:
        states = self.embedding[tokens]
        queries, keys, values = (states @ one for one in self.projection)
        fetched = cache[0].update_and_fetch(keys[:, None], values[:, None])
        keys, values = self.read(cache[0], fetched)
        mask = create_attention_mask(states, cache[0])
        found = scaled_dot_product_attention(
            queries[:, None], keys, values, cache[0], 0.125, mask, self.sinks
        )
        logits: mx.array = found[:, 0] @ self.embedding.T
        return logits


def _reads_its_cache(cache: Any, _: Any) -> Any:
    return cache.keys[:, :, : cache.offset], cache.values[:, :, : cache.offset]


def _forgets_the_cache(cache: Any, fetched: Any) -> Any:
    if isinstance(cache, KVCache):
        return fetched
    return mx.zeros((1, 1, 1, 64)), mx.zeros((1, 1, 1, 64))


@pytest.mark.parametrize("read", [_reads_its_cache, _forgets_the_cache])
def test_a_model_that_reads_its_cache_in_its_own_way_is_refused(read: Any) -> None:
    forward = Forward(_Toy(read))
    with pytest.raises(OperationError) as caught:
        quantize_kv(forward, 8)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert "kv_bits" in caught.value.message and "none" in caught.value.message
    assert forward.kv_quantization is None
    assert load_failure(caught.value, ModelKind.CHAT).permanent


@pytest.mark.parametrize("sinks", [None, mx.ones(1)])
def test_an_attention_that_cannot_multiply_with_quantized_numbers_reads_expanded_ones(
    sinks: mx.array | None,
) -> None:
    forward = Forward(_Toy(lambda _, fetched: fetched, sinks))
    plain = logits_of(forward)
    quantize_kv(forward, 8)
    assert reads_expanded(forward) == {sinks is not None}
    assert off_by(forward, plain) < 0.1


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_a_model_without_such_caches_is_refused(tmp_path: Path, kind: str) -> None:
    """Heads of 16 numbers, and recurrent states alone."""
    with pytest.raises(OperationError, match="kv_bits 8") as caught:
        loaded(make_tiny_model(tmp_path, kind), 8)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_layers_that_see_a_window_alone_stay_plain(tmp_path: Path) -> None:
    folder = make_text_model(tmp_path, "mistral")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sliding_window": 16}))
    assert loaded(folder, 8).kv_quantization is None
