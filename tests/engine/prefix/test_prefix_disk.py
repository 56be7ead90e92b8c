"""The prefix cache's disk: restarts, budgets, damage, and a disk that is slow or fails."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import KVCache

from lmx.worker.mlx.prefix import cache as mlx_prefix_cache
from lmx.worker.mlx.prefix.cache import PrefixCache
from lmx.worker.mlx.prefix.folder import PrefixFolder
from tests.support.fakes.reported_caches import (
    BYTES_A_TOKEN,
    MIXED,
    PLAIN,
    ToldModel,
    find,
    held_by,
    keep,
    on_disk,
    prompt,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


@pytest.mark.parametrize("model", [PLAIN, MIXED], ids=["plain", "mixed"])
def test_it_survives_a_restart(folder: Path, model: ToldModel) -> None:
    tokens = prompt(1, 1300)
    cache = PrefixCache(model.make_cache, on_disk(folder), "n")
    keep(cache, model, tokens, "s")
    keep(cache, model, tokens + prompt(2, 60), "s")
    keep(cache, model, tokens + prompt(3, 60), "s")
    cache.close()
    again = PrefixCache(model.make_cache, on_disk(folder), "n")
    assert again.bytes_held() == 0
    assert find(again, tokens + prompt(3, 61), "s") == 1360
    assert again.bytes_held() >= 1360 * BYTES_A_TOKEN
    files = sorted(folder.glob("*/*"))
    keep(again, model, tokens + prompt(2, 60), "s")
    again.close()
    assert sorted(folder.glob("*/*")) == files  # All of it was there.


def test_half_precision_survives_too(folder: Path) -> None:
    class Half:
        def make_cache(self) -> list[Any]:
            return [KVCache()]

    tokens = prompt(1, 40)
    keys = mx.random.normal((1, 2, 40, 8)).astype(mx.bfloat16)
    live = [KVCache()]
    live[0].update_and_fetch(keys, keys * 2)
    cache = PrefixCache(Half().make_cache, on_disk(folder), "n")
    cache.store(tokens, live, "")
    cache.close()
    warm = PrefixCache(Half().make_cache, on_disk(folder), "n").lookup([*tokens, 1], "")
    assert warm is not None
    assert mx.array_equal(warm.prompt_cache[0].keys[:, :, :40], keys)
    assert mx.array_equal(warm.prompt_cache[0].values[:, :, :40], keys * 2)


def test_what_left_memory_comes_back_from_disk(folder: Path) -> None:
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder, 1000 * BYTES_A_TOKEN), "n")
    for seed in range(8):
        keep(cache, PLAIN, prompt(seed, 400))
        settle(cache)
    for seed in (0, 3, 7):
        assert find(cache, prompt(seed, 400)) == 399
        assert cache.bytes_held() <= 1000 * BYTES_A_TOKEN


def settle(cache: PrefixCache) -> None:
    disk = cache._store._disk
    assert disk is not None and disk.settle(20)
    cache.rest()


def test_a_part_of_it_comes_where_memory_has_no_room_for_all(folder: Path) -> None:
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    keep(cache, PLAIN, prompt(1, 1500))
    cache.close()
    small = PrefixCache(PLAIN.make_cache, on_disk(folder, 600 * BYTES_A_TOKEN), "n")
    assert find(small, prompt(1, 1500)) == 512
    assert small.bytes_held() <= 600 * BYTES_A_TOKEN


class Stuck:
    """A disk that begins to write and gets nowhere until ``free`` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    disk = Stuck()
    write = PrefixFolder.write

    def wait_and_write(self: PrefixFolder, *arguments: Any) -> Any:
        disk.begun.set()
        assert disk.free.wait(90)
        return write(self, *arguments)

    monkeypatch.setattr(PrefixFolder, "write", wait_and_write)
    yield disk
    disk.free.set()


def test_a_stuck_disk_stops_nobody(
    folder: Path, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1000 * BYTES_A_TOKEN
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder, limit), "n")
    for seed in range(10):
        keep(cache, PLAIN, prompt(seed, 300))
        assert stuck.begun.wait(90)
        assert find(cache, prompt(seed, 300)) == 299
        assert cache.bytes_held() <= limit
    # What was given up before it was written is nowhere, but for the one in writing.
    assert find(cache, prompt(4, 300)) == 0
    monkeypatch.setattr(mlx_prefix_cache, "_CLOSE_S", 0.01)
    cache.close()


def test_shrinking_gives_up_first_what_is_on_disk(folder: Path, stuck: Stuck) -> None:
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    stuck.free.set()
    keep(cache, PLAIN, prompt(1, 300))
    settle(cache)
    stuck.free.clear()
    keep(cache, PLAIN, prompt(2, 300))
    assert find(cache, prompt(1, 300)) == 299, "so that it is the warmer one"
    cache.shrink()
    assert cache.bytes_held() == 300 * BYTES_A_TOKEN
    assert find(cache, prompt(2, 300)) == 299, "it is nowhere else yet"
    stuck.free.set()
    settle(cache)
    cache.regrow()
    assert find(cache, prompt(1, 300)) == 299, "it came back"


def test_what_is_given_up_while_it_is_written_comes_back(folder: Path, stuck: Stuck) -> None:
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder, 1000 * BYTES_A_TOKEN), "n")
    for seed in range(8):
        keep(cache, PLAIN, prompt(seed, 300))
        assert stuck.begun.wait(90)
    stuck.free.set()
    settle(cache)
    assert find(cache, prompt(0, 300)) == 299


def test_fetch_begins_to_read_and_never_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(1, 100)
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    assert cache.fetch(tokens, "")
    keep(cache, PLAIN, tokens)
    assert cache.fetch(tokens, "")
    cache.close()
    free = threading.Event()
    read = PrefixFolder.read
    monkeypatch.setattr(PrefixFolder, "read", lambda self, key: free.wait(90) and read(self, key))
    monkeypatch.setattr(mlx_prefix_cache, "_READ_WAIT_S", 0.01)
    again = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    assert not again.fetch(tokens, "")
    assert find(again, tokens) == 0  # It waits no longer than it may.
    free.set()
    settle(again)
    assert again.fetch(tokens, "")
    assert find(again, tokens) == 99


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = PrefixCache(PLAIN.make_cache, on_disk(tmp_path / "file" / "prefixes"), "n")
    keep(cache, PLAIN, prompt(1, 100))
    assert find(cache, prompt(1, 100)) == 99


def test_a_disk_that_fails_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    cache = PrefixCache(PLAIN.make_cache, on_disk(folder, 1000 * BYTES_A_TOKEN), "n")
    with monkeypatch.context() as patched:
        patched.setattr("lmx.worker.mlx.prefix.folder.write_segment", full)
        keep(cache, PLAIN, prompt(1, 500))
        settle(cache)
    assert find(cache, prompt(1, 500)) == 499
    keep(cache, PLAIN, prompt(2, 900))  # There is no file that it could come back from.
    assert find(cache, prompt(1, 500)) == 0
    assert cache.bytes_held() == 900 * BYTES_A_TOKEN, "what has no file takes no memory any more"
    settle(cache)
    assert list(folder.glob("*/*.part")) == []


def test_what_the_disk_has_given_up_takes_no_memory_once_it_leaves_that_too(folder: Path) -> None:
    spec = on_disk(folder, 1000 * BYTES_A_TOKEN, 500 * BYTES_A_TOKEN)
    cache = PrefixCache(PLAIN.make_cache, spec, "n")
    for seed in range(6):
        keep(cache, PLAIN, prompt(seed, 300))
        settle(cache)
        assert find(cache, prompt(seed, 300)) == 299
        assert cache.bytes_held() == min(seed + 1, 3) * 300 * BYTES_A_TOKEN
    assert [find(cache, prompt(seed, 300)) for seed in (3, 4, 5)] == [299] * 3


def test_what_no_memory_is_left_for_is_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    keep(cache, PLAIN, prompt(1, 100))
    cache.close()
    again, kept = (
        PrefixCache(PLAIN.make_cache, on_disk(folder), "n"),
        held_by(PLAIN, prompt(2, 900)),
    )

    def full(*_: Any) -> None:
        raise RuntimeError("[malloc] Unable to allocate 9 bytes.")

    with monkeypatch.context() as patched:
        patched.setattr("lmx.worker.mlx.prefix.store.arrays_of", full)
        assert find(again, prompt(1, 100)) == 0
        settle(again)
        patched.setattr(mx, "eval", full)
        with pytest.raises(RuntimeError, match="allocate"):
            again.store(prompt(2, 900), kept, "")
    assert again.bytes_held() == 0
    for seed, length in ((1, 100), (2, 900)):
        assert again.found(prompt(seed, length), "") == 0
        keep(again, PLAIN, prompt(seed, length))
        assert find(again, prompt(seed, length)) == length - 1
    assert again.bytes_held() == 1000 * BYTES_A_TOKEN


@pytest.mark.parametrize("model", [PLAIN, MIXED], ids=["plain", "mixed"])
def test_damaged_and_missing_files_are_never_believed(folder: Path, model: ToldModel) -> None:
    tokens = prompt(1, 1100)
    cache = PrefixCache(model.make_cache, on_disk(folder), "n")
    keep(cache, model, tokens)
    cache.close()
    files = {path: path.read_bytes() for path in folder.glob("*/*")}
    for path, whole in files.items():
        half = len(whole) // 2
        damages: list[bytes | None] = [
            None,
            b"",
            whole[:5],
            whole[:half],
            whole[:-1],
            whole[:half] + bytes(len(whole) - half),
            *(flip(whole, at) for at in (0, 9, 30, 200, half, len(whole) - 1)),
            whole.replace(b"lmx-prefix-1", b"lmx-prefix-0"),
            whole + b"x",
        ]
        for damage in damages:
            for other in folder.glob("*/*"):
                other.unlink()
            for other, good in files.items():
                other.write_bytes(good)
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            again = PrefixCache(model.make_cache, on_disk(folder), "n")
            assert find(again, [*tokens, 1]) < len(tokens)
            keep(again, model, tokens)  # It is mended.
            assert find(again, [*tokens, 1]) == len(tokens)
            again.close()


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_two_workers_of_one_model_share_a_folder(folder: Path) -> None:
    """Each deletes what the other one counts on; neither finds anything wrong."""
    spec = on_disk(folder, 700 * BYTES_A_TOKEN, 1500 * BYTES_A_TOKEN)
    workers = [PrefixCache(PLAIN.make_cache, spec, "n"), PrefixCache(PLAIN.make_cache, spec, "n")]
    for turn in range(24):
        worker = workers[turn % 2]
        seed = turn * 5 % 7
        shared = prompt(99, 100) + prompt(seed, 200 + turn)
        assert turn < 2 or find(worker, shared) >= 100
        keep(worker, PLAIN, shared)
        assert find(worker, shared) > len(shared) - 16
        settle(worker)
        assert sum(path.stat().st_size for path in folder.glob("*/*")) <= spec.disk_bytes
    for worker in workers:
        worker.close()


def test_a_bug_with_one_segment_costs_that_segment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PrefixFolder.write
    failed: list[bool] = []

    def once(self: PrefixFolder, *args: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError("a bug")
        return write(self, *args)

    monkeypatch.setattr(PrefixFolder, "write", once)
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    for seed in (1, 2):
        keep(cache, PLAIN, prompt(seed, 400))
        settle(cache)
    cache.close()
    assert failed
    again = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    assert [find(again, prompt(seed, 400)) for seed in (1, 2)] == [0, 399]


def test_what_continues_a_segment_that_is_given_up_for_it_takes_no_memory(folder: Path) -> None:
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    keep(cache, PLAIN, prompt(1, 100))
    settle(cache)
    keep(cache, PLAIN, prompt(1, 100) + prompt(2, 200))
    settle(cache)
    store = cache._store
    child, parent = sorted(store.tree.coldest(), key=lambda one: one.start, reverse=True)[:2]
    assert child.parent is parent
    store._give_up(child)
    parent.on_disk = False  # As after a failed write.
    store._limit_bytes = child.nbytes
    assert store._disk is not None and store._disk.read(child.segment_id)
    settle(cache)
    assert store.tree.get(child.segment_id) is None
    assert cache.bytes_held() == 0
