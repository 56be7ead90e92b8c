"""The arithmetic with an engine's estimate."""

from lmx.protocol.models.memory import (
    Activations,
    KvLayers,
    MemoryModel,
    activation_bytes,
    kv_bytes,
)


def test_a_window_is_full_and_a_state_is_constant() -> None:
    layers = (
        KvLayers(2, 10, 512, step_tokens=256),
        KvLayers(1, 10, step_tokens=256),
        KvLayers(3, 0, None, 7),
    )
    assert kv_bytes(layers, 300) == 3 * 5120 + 21, "whole steps of 256 tokens"
    assert kv_bytes(layers, 2048) == 2 * 5120 + 20_480 + 21
    assert kv_bytes([KvLayers(1, 10)], 301) == 3010, "token by token"


def test_intermediate_results_are_those_of_one_chunk() -> None:
    windows = (KvLayers(2, 10, 64), KvLayers(9, 10))
    work = Activations(100, False, 5, 0, 1, 7)
    assert activation_bytes(work, 1000, 3, windows) == 100 * 5 + 100 * 2 * 10 + 3 * 7
    assert activation_bytes(work, 50, 3, ()) == 50 * 5 + 21, "a prompt that is shorter"
    whole = Activations(100, True, 5, 0, 1, 0)
    assert activation_bytes(whole, 1000, 0, ()) == 5000, "a text that is not cut"
    assert activation_bytes(whole, 50, 0, ()) == 500, "several texts together"


def test_what_is_behind_a_chunk_counts_less_the_further_it_is() -> None:
    work = Activations(100, False, 0, 2, 4000, 0)
    assert activation_bytes(work, 4000, 0, ()) == 100 * 2 * 2000
    assert activation_bytes(work, 10**9, 0, ()) < 100 * 2 * 4000


def test_one_quantized_layer_is_expanded_at_a_time() -> None:
    work = Activations(100, False, 0, 0, 1, 7)
    layers = (KvLayers(9, 10, read_bytes=20), KvLayers(1, 10, read_bytes=30), KvLayers(5, 40))
    assert activation_bytes(work, 1000, 2, layers) == 2 * 1000 * 30 + 2 * 7


def test_the_layers_with_other_bits_are_the_same_for_an_engine_that_has_none() -> None:
    plain, half, quarter = ((KvLayers(1, size),) for size in (4, 2, 1))
    work = Activations(1, False, 0, 0, 1, 0)
    known = MemoryModel(1, 1, 1, plain, work, half, quarter)
    assert [known.kv_layers_with(bits) for bits in (None, 8, 4)] == [plain, half, quarter]
    unknown = MemoryModel(1, 1, 1, plain, work)
    assert [unknown.kv_layers_with(bits) for bits in (None, 8, 4)] == [plain] * 3
