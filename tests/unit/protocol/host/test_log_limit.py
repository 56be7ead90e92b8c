"""Log files keep to their size, whoever writes, and however much at once."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmx.protocol.host import log_limit
from lmx.protocol.host.log_files import rotated
from lmx.protocol.host.log_limit import LogLimit, keep_to
from lmx.protocol.host.logs import LogFile
from lmx.router.operators.logs import Place, more_lines

LIMIT = LogLimit(10_000, 2)


def test_a_full_file_is_put_aside_and_stays_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    inode = None
    for turn in "abc":
        with path.open("ab") as file:
            file.write(f"{turn * 99}\n".encode() * 100)
        inode = inode or path.stat().st_ino
        assert keep_to(path, LIMIT)
        assert (path.stat().st_size, path.stat().st_ino) == (0, inode)
    assert len(rotated(path, 1).read_bytes()) == 10_000
    assert rotated(path, 1).read_text()[0] == "c"
    assert rotated(path, 2).read_text()[0] == "b"
    assert not rotated(path, 3).exists()
    assert not keep_to(tmp_path / "none.log", LIMIT)


def test_a_burst_is_cut_to_the_limit_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"%09d\n" % number for number in range(50_000)))
    keep_to(path, LIMIT)
    kept = rotated(path, 1).read_bytes()
    assert len(kept) <= LIMIT.max_bytes
    first, *lines = kept.splitlines()
    dropped = json.loads(first)
    assert (dropped["event"], lines[-1]) == ("log.cut", b"000049999")
    assert dropped["dropped_bytes"] == 10 * int(lines[0])


def test_a_disk_without_room_for_the_copy_keeps_the_limit_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 12_000)
    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space"):
        keep_to(path, LIMIT)
    assert path.stat().st_size == 12_000
    with path.open("ab") as file:
        file.write(b"x" * 12_000)
    keep_to(path, LIMIT)
    assert [each.name for each in tmp_path.iterdir()] == ["a.log"]
    assert path.stat().st_size == 0


def test_a_full_disk_costs_no_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.log"
    older = {rotated(path, 1): b"newer", rotated(path, 2): b"older"}
    for each, content in older.items():
        each.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        path.write_bytes(b"x" * 12_000)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                keep_to(path, LIMIT)
        path.write_bytes(b"x" * 24_000)
        keep_to(path, LIMIT)
    assert {each: each.read_bytes() for each in older} == older
    assert len(list(tmp_path.iterdir())) == 3
    path.write_bytes(b"x\n" * 4_500)
    keep_to(path, LIMIT)
    assert rotated(path, 1).read_bytes() == b"x\n" * 4_500
    assert rotated(path, 2).read_bytes() == b"newer"


def test_who_follows_misses_nothing_when_a_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n2\n")
    _, place = more_lines(path, Place(None, 0))
    lines, place = more_lines(path, place)
    assert lines == ["1", "2"]
    with path.open("a") as file:
        file.write("3\n" + "x" * LIMIT.full_bytes + "\n")
    keep_to(path, LogLimit(LIMIT.max_bytes, 2))
    with path.open("a") as file:
        file.write("4\n")
    found: list[str] = []
    for _ in range(5):
        lines, place = more_lines(path, place)
        found += [line for line in lines if len(line) == 1]
    assert found == ["3", "4"]


CHATTER = """
import os, sys, time
from pathlib import Path
from lmx.protocol.host.logs import LogFile
log = LogFile(Path(sys.argv[1]), 1_000_000, 2)
log.attach()
log.keep()
if os.fork() == 0:
    # What a worker forked: it knows of no limit, and outlives rotations.
    for _ in range(300):
        os.write(2, b"c" * 9_999 + b"\\n")
        time.sleep(0.005)
    os._exit(0)
end = time.monotonic() + 40
while not Path(sys.argv[1] + ".2").exists() and time.monotonic() < end:
    os.write(2, b"n" * 99_999 + b"\\n")   # as native code prints, past Python's streams
    time.sleep(0.01)
os.wait()
end = time.monotonic() + 40
while max(each.stat().st_size for each in Path(sys.argv[1]).parent.iterdir()) > 1_000_000:
    if time.monotonic() > end:
        break
    time.sleep(0.05)
"""


def test_native_prints_and_forked_children_keep_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    env = {**os.environ}
    done = subprocess.run(
        [sys.executable, "-c", CHATTER, str(path)], env=env, check=False, timeout=180,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0
    sizes = {each.name: each.stat().st_size for each in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1", "a.log.2"}
    assert max(sizes.values()) <= 1_000_000


def test_a_log_to_which_nothing_is_written_is_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    written = ("a line\n", "", "", "x" * 2_000_000, "", "", "another\n", None, "")
    path, told = tmp_path / "a.log", iter(written)
    log = LogFile(path, 1_000_000, 2)
    path.touch()
    monkeypatch.setattr(log, "_attach", path.touch)

    def sleep(wait_s: float) -> None:
        waits_s.append(wait_s)
        text = next(told, 0)
        if text == 0:
            raise StopIteration
        if text is None:
            path.unlink()
            return
        with path.open("a") as file:
            file.write(str(text))

    def keep() -> None:
        # The thread blocks signals for itself.
        with contextlib.suppress(StopIteration):
            log_limit._keep_forever(log._keep_once, sleep)

    thread = threading.Thread(target=keep)
    thread.start()
    thread.join(90)
    soon, rest = log_limit._CHECK_S, log_limit._REST_S
    assert waits_s == [soon, soon, rest, rest, soon, rest, rest, soon, soon, rest]
    assert soon < rest


def test_a_limit_is_kept_to_several_times_a_second(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x\n" * 10_000)
    log_limit.keep_forever(lambda: keep_to(path, LIMIT), "test")
    end_s = time.monotonic() + 60
    while path.stat().st_size and time.monotonic() < end_s:
        time.sleep(0.02)
    assert path.stat().st_size == 0
