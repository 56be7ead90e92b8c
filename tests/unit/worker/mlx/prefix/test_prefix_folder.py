"""The prefix cache's files: what is kept, what is deleted, and what a dying process leaves."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmx.worker.mlx.prefix.disk import PrefixDisk
from lmx.worker.mlx.prefix.file import SegmentRecord, Tensor
from lmx.worker.mlx.prefix.folder import PrefixFolder, prefix_namespace
from lmx.worker.mlx.prefix.tree import root_id

DATA_BYTES = 1000
AMPLE_BYTES = 1 << 20


def segment(seed: int, nbytes: int = DATA_BYTES) -> SegmentRecord:
    tensor = Tensor("k0", "U8", (nbytes,), nbytes)
    return SegmentRecord(root_id("s"), 0, np.full(16, seed, np.int32), (tensor,), {"made": seed})


def data_of(record: SegmentRecord) -> list[memoryview]:
    return [memoryview(bytes([int(record.tokens[0]) % 256]) * record.nbytes)]


def add(folder: PrefixFolder, seed: int) -> bytes:
    record = segment(seed)
    folder.write(record, data_of(record))
    return record.segment_id


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path / "p", "n", AMPLE_BYTES)
    record = segment(3)
    assert folder.write(record, data_of(record)) == []
    assert folder.write(record, data_of(record)) == []  # It is there.
    found = PrefixFolder(tmp_path / "p", "n", AMPLE_BYTES).read(record.segment_id)
    assert found is not None
    read, data = found
    assert [bytes(part) for part in data] == [bytes(part) for part in data_of(record)]
    assert (read.parent_id, read.start, read.tensors) == (
        record.parent_id,
        record.start,
        record.tensors,
    )
    assert read.tokens.tolist() == record.tokens.tolist() and read.structure == {"made": 3}
    assert folder.read(segment(4).segment_id) is None


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        add(PrefixFolder(tmp_path / "a" / "p", "n", AMPLE_BYTES), 1)
    finally:
        os.umask(umask)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "p").glob("*/*")}
    assert modes == {0o600}
    assert (tmp_path / "a" / "p").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "p" / "n").stat().st_mode & 0o777 == 0o700


def test_uses_that_wait_for_a_disk_that_hangs_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest come first, as the beginning of a prompt comes before its end."""
    begun, free = threading.Event(), threading.Event()
    touched: list[Sequence[bytes]] = []

    def touch(_folder: PrefixFolder, segment_ids: Sequence[bytes]) -> None:
        touched.append(segment_ids)
        begun.set()
        assert free.wait(90)

    monkeypatch.setattr(PrefixFolder, "touch", touch)
    disk = PrefixDisk(tmp_path, "n", AMPLE_BYTES)
    try:
        disk.touch([b"first"])
        assert begun.wait(90)
        for _ in range(1000):
            disk.touch([b"a", b"b", b"c"])
            disk.touch([b"a", b"d"])
        free.set()
        assert disk.settle(90)
    finally:
        free.set()
        disk.close(0)
    assert [list(ids) for ids in touched] == [[b"first"], [b"a", b"d", b"b", b"c"]]


def test_the_least_recently_used_make_room_in_all_namespaces(tmp_path: Path) -> None:
    ample = PrefixFolder(tmp_path, "old", AMPLE_BYTES)
    old = add(ample, 1)
    size = ample.total_bytes
    limit = 4 * size + size // 2
    mine = PrefixFolder(tmp_path, "mine", limit)
    ids = [add(mine, seed) for seed in (2, 3, 4)]
    for age_s, path in enumerate(
        [*(tmp_path / "mine" / f"{key.hex()}.safetensors" for key in reversed(ids))]
    ):
        os.utime(path, (time.time() - 100 * (age_s + 1),) * 2)
    os.utime(tmp_path / "old" / f"{old.hex()}.safetensors", (0, 0))
    record = segment(5)
    assert mine.write(record, data_of(record)) == []  # The old model's went.
    assert ample.read(old) is None
    mine.touch([ids[0]])
    record = segment(6)
    assert mine.write(record, data_of(record)) == [ids[1]]
    assert [mine.read(key) is not None for key in ids] == [True, False, True]
    assert mine.total_bytes == sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= limit


def test_what_others_grow_from_is_used_later_than_they(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    ids = [add(folder, seed) for seed in range(5)]
    folder.touch(ids)
    stamps = [(tmp_path / "n" / f"{key.hex()}.safetensors").stat().st_mtime_ns for key in ids]
    assert stamps == sorted(stamps, reverse=True) and len(set(stamps)) == 5


def test_a_segment_above_the_limit_is_refused_and_drives_none_out(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path, "n", 5000)
    kept = add(folder, 1)
    large = segment(2, 6000)
    with pytest.raises(OSError):
        folder.write(large, data_of(large))
    assert folder.read(kept) is not None


def test_what_was_evicted_for_a_write_that_fails_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ample = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    kept = add(ample, 1)
    small = PrefixFolder(tmp_path, "n", ample.total_bytes)

    def full(*_: Any) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr("lmx.worker.mlx.prefix.folder.write_segment", full)
    record = segment(2)
    with pytest.raises(OSError):
        small.write(record, data_of(record))
    assert (small.take_lost(), small.take_lost()) == ([kept], [])


def test_nothing_of_others_is_deleted(tmp_path: Path) -> None:
    others = [
        tmp_path / "model" / "model-00001-of-00002.safetensors",
        tmp_path / "n" / "model.safetensors",
        tmp_path / "n" / "notes.part",
        tmp_path / "loose.safetensors",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(5000))
        os.utime(path, (0, 0))
    folder = PrefixFolder(tmp_path, "n", 3000)
    assert folder.scan() == []
    for seed in range(5):
        add(folder, seed)
    assert all(path.read_bytes() == bytes(5000) for path in others)


def test_what_a_dead_process_left_unfinished_goes(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    name = segment(1).segment_id.hex()
    old, fresh = tmp_path / "n" / f"{name}.11.part", tmp_path / "n" / f"{name}.22.part"
    for path in (old, fresh):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 3600,) * 2)
    add(folder, 2)
    PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    assert not old.exists() and fresh.exists()


def test_a_file_by_another_ones_name_is_damaged(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    one, other = add(folder, 1), segment(2).segment_id
    path = tmp_path / "n" / f"{one.hex()}.safetensors"
    path.rename(path.with_name(f"{other.hex()}.safetensors"))
    assert folder.read(other) is None
    assert list(tmp_path.glob("n/*")) == []


WRITER = """
import sys
from pathlib import Path
from tests.unit.worker.mlx.prefix.test_prefix_folder import PrefixFolder, data_of, segment
folder = PrefixFolder(Path(sys.argv[1]), "n", 1 << 30)
for seed in range(100_000):
    record = segment(seed, 300_000)
    folder.write(record, data_of(record))
    print(seed, flush=True)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_wrong(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    for _ in range(30):
        assert writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    folder = PrefixFolder(tmp_path, "n", 1 << 30)
    stored = folder.scan()
    assert len(stored) >= 30
    for record in stored:
        found = folder.read(record.segment_id)
        assert found is not None
        assert bytes(found[1][0]) == bytes(data_of(record)[0])


def test_a_namespace_is_one_models_files(tmp_path: Path) -> None:
    folder = tmp_path / "secret model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights = folder / "model.safetensors"
    weights.write_bytes(b"abc")
    os.utime(weights, ns=(5, 5))
    seen = [prefix_namespace(folder, ["1"])]
    assert prefix_namespace(folder, ["1"]) == seen[0] and seen[0].isalnum()
    seen.append(prefix_namespace(folder, ["2"]))
    (folder / "config.json").write_text('{"quantization": 4}')
    seen.append(prefix_namespace(folder, ["1"]))
    os.utime(weights, ns=(6, 6))
    seen.append(prefix_namespace(folder, ["1"]))
    weights.write_bytes(b"abcd")
    os.utime(weights, ns=(6, 6))
    seen.append(prefix_namespace(folder, ["1"]))
    folder.rename(tmp_path / "other")
    seen.append(prefix_namespace(tmp_path / "other", ["1"]))
    assert len(set(seen)) == len(seen)


OPERATIONS = ("stat", "open", "unlink", "replace", "utime", "scandir", "mkdir", "chmod")


class Operations:
    """Counts what is asked of the file system, an entry of a listed folder as one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return function(*args, **kwargs)

        return counted


def test_a_write_costs_the_same_however_many_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_each, full_each = [], []
    for files in (50, 2000):
        root = tmp_path / str(files)
        folder = PrefixFolder(root, "n", 1 << 30)
        for seed in range(files):
            add(folder, seed)
        with monkeypatch.context() as patch:
            operations = Operations(patch)
            for seed in range(files, files + 100):
                add(folder, seed)
            empty_each.append(operations.count / 100)
        limit = folder.total_bytes
        folder = PrefixFolder(root, "n", limit)
        with monkeypatch.context() as patch:
            operations = Operations(patch)
            for seed in range(files + 100, files + 500):
                add(folder, seed)
            full_each.append(operations.count / 400)
        assert files + 98 <= len(list((root / "n").iterdir())) <= files + 100
        assert folder.total_bytes <= limit
    assert max(empty_each) < 6, empty_each
    # One is deleted for each, and all are listed from time to time.
    assert max(full_each) < 25 and full_each[1] < 1.2 * full_each[0], full_each


def test_what_other_processes_write_and_delete_is_found_out(tmp_path: Path) -> None:
    """Two workers of one model, and one of another, in one folder."""
    size = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    add(size, 0)
    each_bytes = size.total_bytes
    (tmp_path / "n" / f"{segment(0).segment_id.hex()}.safetensors").unlink()
    limit = 40 * each_bytes
    folders = [PrefixFolder(tmp_path, name, limit) for name in ("n", "n", "other")]
    for seed in range(1, 201):
        add(folders[seed % 3], seed)
        stored = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
        # A tenth for each of them, and what each may write until it counts.
        assert stored <= limit * 1.3 + 3 * each_bytes
    assert 30 <= len(list(tmp_path.glob("*/*"))) <= 55


def test_what_another_process_uses_stays(tmp_path: Path) -> None:
    ample = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    ids = [add(ample, seed) for seed in range(4)]
    for age_s, key in enumerate(reversed(ids)):
        os.utime(tmp_path / "n" / f"{key.hex()}.safetensors", (time.time() - 100 - age_s,) * 2)
    mine = PrefixFolder(tmp_path, "n", ample.total_bytes)
    PrefixFolder(tmp_path, "n", AMPLE_BYTES).touch([ids[0]])
    record = segment(9)
    assert mine.write(record, data_of(record)) == [ids[1]]
    assert mine.read(ids[0]) is not None


def test_files_that_vanished_are_reported_lost_when_their_turn_comes(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path, "n", AMPLE_BYTES)
    ids = [add(folder, seed) for seed in range(3)]
    full = PrefixFolder(tmp_path, "n", folder.total_bytes)
    for path in tmp_path.glob("n/*"):
        path.unlink()
    record = segment(9)
    lost = full.write(record, data_of(record))
    assert lost and set(lost) <= set(ids)
    assert full.read(record.segment_id) is not None
