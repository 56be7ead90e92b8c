"""Rows that join and leave: each keeps its own content, and only one is copied."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import CacheList, KVCache, RotatingKVCache

from lmx.worker.mlx.model.batch_slots import SlottedKVCache, give_up_slots, join, kept_places, leave

LAYERS, HEADS, WIDTH = 2, 2, 4


def entries(rows: int, tokens: int, start: float) -> mx.array:
    """Numbers that no other entry has."""
    count = rows * HEADS * tokens * WIDTH
    return (mx.arange(count) + start).reshape(rows, HEADS, tokens, WIDTH).astype(mx.float32)


def single(tokens: int, start: float) -> list[Any]:
    layers = [KVCache() for _ in range(LAYERS)]
    for layer in layers:
        layer.update_and_fetch(entries(1, tokens, start), -entries(1, tokens, start))
    mx.eval([layer.state for layer in layers])
    return layers


class Batch:
    """A batch, and what each of its rows should hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cache: list[Any] = []
        self.expected: list[mx.array] = []
        self.start = 0

    def join(self, tokens: int) -> None:
        self.start += 10_000
        row = single(tokens, self.start)
        self.cache = join(self.cache, row) if self.cache else row
        self.expected.append(entries(1, tokens, self.start))

    def leave(self, gone: list[int]) -> None:
        mx.eval([layer.state for layer in self.cache])
        places = kept_places(len(self.expected), gone)
        self.expected = [self.expected[place] for place in places]
        leave(self.cache, places, max(row.shape[2] for row in self.expected))

    def decode(self, tokens: int) -> None:
        self.start += 10_000
        new = entries(len(self.expected), tokens, self.start)
        for layer in self.cache:
            keys, values = layer.update_and_fetch(new, -new)
            assert keys.shape[0] == values.shape[0] == len(self.expected)
        kept = [self.random.randrange(1, tokens + 1) for _ in self.expected]
        longest = max(kept)
        for layer in self.cache:
            layer.trim(tokens - longest)
            if min(kept) < longest:
                layer.prepare(right_padding=[longest - one for one in kept], lengths=kept)
                layer.finalize()
        self.expected = [
            mx.concatenate([row, new[place : place + 1, :, : kept[place]]], axis=2)
            for place, row in enumerate(self.expected)
        ]

    def check(self) -> None:
        for layer in self.cache:
            keys, values, offsets, paddings = layer.state
            assert offsets.tolist() == [row.shape[2] for row in self.expected]
            for place, row in enumerate(self.expected):
                padding = paddings[place].item()
                assert mx.array_equal(keys[place : place + 1, :, padding:], row)
                assert mx.array_equal(values[place : place + 1, :, padding:], -row)
                assert mx.array_equal(layer.extract(place).state[0], row)


@pytest.mark.parametrize("seed", range(4))
def test_each_row_keeps_its_own_content(seed: int) -> None:
    batch = Batch(seed)
    pick = batch.random
    for tokens in (200, 230, 190):
        batch.join(tokens)
    took_slot = 0
    for _ in range(60):
        rows = len(batch.expected)
        match pick.randrange(6):
            case 0 | 1 if rows < 9:
                layer = batch.cache[0]
                free = layer.free_slots
                batch.join(pick.choice((20, 150, layer.size(), layer.size() + 5)))
                took_slot += layer is batch.cache[0] and layer.free_slots < free
            case 2 | 3 if rows > 3:
                batch.leave(pick.sample(range(rows), pick.choice((1, 1, 1, 2))))
            case 4 if pick.random() < 0.3:
                give_up_slots(batch.cache)
                assert batch.cache[0].free_slots == 0
            case _:
                batch.decode(pick.choice((1, 1, 1, 3)))
        batch.check()
    assert took_slot, "no row took the slot of another one"


def test_one_row_is_copied_and_not_all() -> None:
    """By the memory that it takes in passing."""
    rows, tokens = 12, 2000
    batch = Batch(0)
    for _ in range(rows):
        batch.join(tokens)
    batch.decode(1)
    mx.eval([layer.state for layer in batch.cache])
    row_bytes = LAYERS * 2 * HEADS * tokens * WIDTH * 4
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    leave(batch.cache, kept_places(rows, [3]), tokens + 1)
    mx.eval([(layer.keys, layer.values) for layer in batch.cache])
    new = single(tokens, 0)
    batch.cache = join(batch.cache, new)
    mx.eval([(layer.keys, layer.values) for layer in batch.cache])
    assert mx.get_peak_memory() - before < 4 * row_bytes


def test_layers_share_the_offsets_of_their_rows() -> None:
    batch = Batch(0)
    for tokens in (30, 20, 25, 30):
        batch.join(tokens)
    changes: list[Callable[[], None]] = [
        lambda: batch.leave([1]),
        lambda: batch.join(10),
        lambda: batch.join(400),
        lambda: batch.leave([0, 2]),
    ]
    for change in changes:
        change()
        new = entries(len(batch.expected), 2, 0)
        for layer in batch.cache:
            layer.update_and_fetch(new, -new)
        for layer in batch.cache:
            assert layer.trim(2) == 2
        batch.check()
        one, other = batch.cache
        assert one.offset is other.offset, "each layer has an array of its own"


def test_rows_that_keep_different_numbers_of_guesses_still_share() -> None:
    batch = Batch(1)
    for tokens in (30, 20, 25):
        batch.join(tokens)
    for _ in range(8):
        batch.decode(3)
    batch.check()
    one, other = batch.cache
    assert one.offset is other.offset
    batch.leave([0])
    batch.check()
    assert one.offset is other.offset


def test_a_layer_without_a_size_joins() -> None:
    class Sizeless:
        def __init__(self, rows: int) -> None:
            self.rows = rows

        @classmethod
        def merge(cls, caches: Sequence[Any]) -> Any:
            return cls(len(caches))

        def extend(self, other: Any) -> None:
            self.rows += other.rows

    (joined,) = join([Sizeless(1)], [Sizeless(1)])
    assert joined.rows == 2


def test_a_leave_that_copies_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(0)
    for tokens in (300, 20, 25):
        batch.join(tokens)
    batch.decode(1)
    read: list[mx.array] = []
    item = mx.array.item

    def noted(array: mx.array) -> Any:
        read.append(array)
        return item(array)

    monkeypatch.setattr(mx.array, "item", noted)
    batch.leave([0])  # The longest one: all are cut.
    monkeypatch.undo()
    assert len(read) == 1
    assert [layer.size() for layer in batch.cache] == [26] * LAYERS
    batch.check()


def test_shifting_the_rows_of_one_layer_leaves_the_others_alone() -> None:
    batch = Batch(0)
    batch.join(30)
    batch.join(20)
    new = entries(2, 2, 0)
    one, other = batch.cache
    for layer in batch.cache:
        layer.update_and_fetch(new, -new)
    one.prepare(right_padding=[1, 0], lengths=[1, 2])
    one.finalize()
    assert one.offset.tolist() == [31, 22]
    assert other.offset.tolist() == [32, 22]


def test_a_row_that_was_no_number_does_not_reach_the_next_one() -> None:
    batch = Batch(0)
    for _ in range(3):
        batch.join(50)
    for layer in batch.cache:
        layer.keys[2], layer.values[2] = float("nan"), float("nan")
    batch.leave([2])
    batch.join(10)
    for layer in batch.cache:
        keys, values, *_ = layer.state
        assert not mx.isnan(keys).any().item() and not mx.isnan(values).any().item()


def test_slots_are_few_and_are_given_up_when_the_cache_grows() -> None:
    batch = Batch(0)
    for _ in range(6):
        batch.join(250)
    batch.decode(1)  # 512 entries for each row.
    batch.leave([0])
    assert [layer.free_slots for layer in batch.cache] == [1, 1]
    batch.leave([0])
    assert [layer.free_slots for layer in batch.cache] == [0, 0]
    batch.leave([1])
    batch.decode(300)
    assert [layer.free_slots for layer in batch.cache] == [0, 0]
    batch.check()


def test_a_cache_that_is_much_longer_than_its_rows_is_cut() -> None:
    batch = Batch(0)
    for tokens in (400, 100, 90, 80):
        batch.join(tokens)
    batch.leave([0])
    assert batch.cache[0].size() == 100
    batch.check()


def test_other_caches_are_copied() -> None:
    """A window, and what consists of several parts."""
    cache: list[Any] = []
    for start in (0, 1000, 2000):
        layers = [RotatingKVCache(8), CacheList(KVCache(), KVCache()), KVCache()]
        for layer in (layers[0], *layers[1].caches, layers[2]):
            layer.update_and_fetch(entries(1, 5, start), entries(1, 5, start))
        cache = join(cache, layers) if cache else layers
    mx.eval([layer.state for layer in cache])
    leave(cache, kept_places(3, [0]), 5)
    assert [type(layer) is SlottedKVCache for layer in cache] == [False, False, True]
    for layer in (cache[0], *cache[1].caches, cache[2]):
        assert [layer.state[0][row, 0, 0, 0].item() for row in (0, 1)] == [2000, 1000]


@pytest.mark.parametrize(
    ("rows", "gone", "places"),
    [
        (4, [3], [0, 1, 2]),
        (4, [0], [3, 1, 2]),
        (5, [0, 3], [4, 1, 2]),
        (5, [0, 1], [4, 3, 2]),
        (3, [0, 1], [2]),
    ],
)
def test_the_last_rows_take_the_places_of_those_that_leave(
    rows: int, gone: list[int], places: list[int]
) -> None:
    assert kept_places(rows, gone) == places
