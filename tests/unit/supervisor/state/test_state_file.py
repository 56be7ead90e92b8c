"""State files that are not what they should be: set aside, said, and lmx starts without."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.quarantine_file import clear_for_file, quarantine_file
from lmx.protocol.messages.keys import ApiKey
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.download_records import DownloadFile
from lmx.supervisor.keys.file import KeyFile, StoredKeys
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.sockets.client import supervisor_runs
from lmx.supervisor.state import atomic_write, process_records, state_file
from lmx.supervisor.state.files import Holds, Pins, read_admin_key
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, SupervisorLock
from lmx.supervisor.state.state_file import StateFile
from tests.support.faults.bad_files import BAD_FILES, put_bad
from tests.support.rigs.rig import wait_until

Say = Callable[[str], None]

READERS: dict[str, Callable[[Path, Say], Any]] = {
    "pins.json": lambda home, say: Pins(home / "pins.json", say).load(),
    "models.json": lambda home, say: AddedFile(home / "models.json", say).load(),
    "measured.json": lambda home, say: Measured.load(home / "measured.json", say).lookup("x"),
    "downloads.json": lambda home, say: DownloadFile(home / "downloads.json", say).load(),
    "holds.json": lambda home, say: Holds(home / "holds.json", say).load(),
    "router.json": lambda home, say: Records(home, notify=say).routers(),
    "workers/a.json": lambda home, say: Records(home, notify=say).workers(),
}


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
@pytest.mark.parametrize("name", sorted(READERS))
def test_it_is_set_aside_and_said(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    put_bad(path, kind)
    said: list[str] = []
    assert not READERS[name](tmp_path, said.append)
    if name == "holds.json" and kind == "another value":
        return  # a list
    if kind in ("surrogates", "numbers", "deep object") and name == "pins.json" and not said:
        return  # an object without pins
    assert len(said) == 1, said
    assert said[0].startswith(f"{path} ")
    assert os.path.lexists(path.with_name(f"{path.name}.damaged"))
    said.clear()
    assert not READERS[name](tmp_path, said.append)
    assert said == []


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
def test_a_key_is_made_where_there_is_none(kind: str, tmp_path: Path) -> None:
    path, said = tmp_path / "admin.key", list[str]()
    put_bad(path, kind)
    key = read_admin_key(path, said.append)
    assert key.startswith("lmx-admin-")
    assert len(said) == 1
    assert key not in said[0]
    assert read_admin_key(path, said.append) == key
    assert len(said) == 1
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
def test_the_lock_can_be_taken(kind: str, tmp_path: Path) -> None:
    path, said = tmp_path / "lock", list[str]()
    put_bad(path, kind)
    lock = SupervisorLock(path, said.append)
    lock.acquire()
    assert path.read_text() == f"{os.getpid()}\n"
    assert len(said) == (kind in ("folder", "dangling link", "pipe"))
    os.close(lock.descriptor)


@pytest.mark.parametrize("kind", [fcntl.LOCK_SH, fcntl.LOCK_EX], ids=["asks", "has not signed"])
def test_who_asks_for_the_lock_is_not_taken_for_a_supervisor(
    kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has the lock, since it stands still. Nor is a command that has not signed."""
    monkeypatch.setattr(process_records, "_ACQUIRE_S", 0.0)
    monkeypatch.setattr(process_records, "_UNSIGNED_S", 90.0)
    path = tmp_path / "lock"
    path.touch()
    asking = os.open(path, os.O_RDONLY)
    fcntl.flock(asking, kind)
    ends = threading.Timer(0.3, os.close, (asking,))
    ends.start()
    lock = SupervisorLock(path)
    lock.acquire()
    ends.join()
    with pytest.raises(OperationError, match=f"pid {os.getpid()}"):
        SupervisorLock(path).acquire()
    os.close(lock.descriptor)


COMMAND = """
import sys
from pathlib import Path
from lmx.supervisor.state.process_records import SupervisorLock
SupervisorLock(Path(sys.argv[1])).acquire(by_command=True)
print(flush=True)
sys.stdin.read()
"""


def test_a_command_that_holds_the_lock_is_no_supervisor_and_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands that change files at the same time do it one after the other."""
    monkeypatch.setattr(process_records, "_ACQUIRE_S", 0.0)
    home = Home(tmp_path)
    command = [sys.executable, "-c", COMMAND, str(home.lock)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline()
        assert not supervisor_runs(home)
        with monkeypatch.context() as patch:
            patch.setattr(process_records, "_ASKED_S", 0.0)
            with pytest.raises(OperationError, match=rf"command .*\(pid {first.pid}\)") as refused:
                SupervisorLock(home.lock).acquire()
            assert refused.value.code is not ErrorCode.ALREADY_RUNNING, "launchd tries again"
        with ThreadPoolExecutor(1) as pool:
            said: list[str] = []
            lock = SupervisorLock(home.lock, said.append)
            acquired = pool.submit(lock.acquire, by_command=True)
            with pytest.raises(TimeoutError):
                acquired.result(0.2)
            wait_until(lambda: said, "it says for whom it waits")
            first.stdin.close()
            acquired.result(90)
        assert said == [f"waiting for another command of lmx (pid {first.pid}) to end"]
    assert home.lock.read_text() == f"command {os.getpid()}\n"
    os.close(lock.descriptor)
    # A supervisor that could not write its pid there, because the disk is full.
    home.lock.write_text(f"command {2**31 - 1}\n")
    with home.lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert supervisor_runs(home)


@pytest.mark.parametrize("kind", ["folder", "dangling link", "pipe"])
def test_a_log_can_be_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    put_bad(path, kind)
    assert clear_for_file(path) == path.with_name("worker.log.damaged")
    assert clear_for_file(path) is None


def test_links_of_logs_are_a_persons_wish(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    for target in (tmp_path / "not-yet", Path("/dev/null")):
        path.symlink_to(target)
        assert clear_for_file(path) is None
        path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        assert clear_for_file(path) is not None


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
def test_writing_goes_around_what_is_in_the_way(kind: str, tmp_path: Path) -> None:
    for name in ("pins.json", "pins.new"):
        put_bad(tmp_path / name, kind)
    assert Pins(tmp_path / "pins.json").save({"a": True}) is None
    assert Pins(tmp_path / "pins.json").load() == {"a": True}


def test_keys_are_on_the_disk_before_they_take_the_place_of_the_former_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may leave an empty file, with which all keys are gone."""
    synced: list[dict[str, str]] = []
    monkeypatch.setattr(
        atomic_write,
        "sync",
        lambda _: synced.append({each.name: each.read_text() for each in tmp_path.iterdir()}),
    )
    path = tmp_path / "keys.json"
    KeyFile(path).save(StoredKeys())
    assert synced == [{"keys.new": path.read_text()}]
    key = read_admin_key(tmp_path / "admin.key")
    assert synced[1]["admin.new"] == f"{key}\n" and "admin.key" not in synced[1]
    Holds(tmp_path / "holds.json").save(["a"])
    assert len(synced) == 2, "the rest is written often, or soon out of date"


def test_folders_of_lmxs_own_are_folders(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for name in ("state", "logs", "run"):
        (tmp_path / name).write_text("x")
    said = Home(tmp_path).prepare()
    assert len(said) == 3
    assert Home(tmp_path).prepare() == []


def test_what_another_process_writes_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    assert StateFile(path, dict).peek() is None
    assert AddedFile(path).read() == {}
    assert path.read_text() == "{"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_what_could_not_be_read_for_a_while_is_not_overwritten(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    path, said = tmp_path / "pins.json", list[str]()
    Pins(path).save({"a": True})
    pins = Pins(path, said.append)
    with monkeypatch.context() as patch:
        patch.setattr(state_file, "read_regular", failing)
        assert pins.load() == {}
    assert len(said) == 1
    assert Pins(path).load() == {"a": True}
    for _ in range(2):
        assert pins.save({"b": True}) is None
    assert Pins(path).load() == {"b": True}
    assert Pins(path.with_name("pins.json.damaged")).load() == {"a": True}
    assert len(list(tmp_path.iterdir())) == 2


def test_keys_that_could_not_be_read_for_a_while_are_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests need a key meanwhile, as if all of them had been lost."""

    def failing(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    path = tmp_path / "keys.json"
    stored = StoredKeys((ApiKey.of_secret("k" * 16),))
    KeyFile(path).save(stored)
    with monkeypatch.context() as patch:
        patch.setattr(state_file, "read_regular", failing)
        assert KeyFile(path).load() == StoredKeys(lost=True)
    assert KeyFile(path).load() == stored
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_good_of_the_added_models_stays(tmp_path: Path) -> None:
    path, said = tmp_path / "models.json", list[str]()
    entries = [
        {"id": "x"},
        {"id": "y", "source": "/y", "of a later version": 1},
        {"id": "z", "source": "/z", "parameters": {"a": "\ud800"}},
    ]
    path.write_text(json.dumps({"models": entries}))
    assert list(AddedFile(path, said.append).load()) == ["y"]
    assert "'x', 'z'" in said[0]
    assert list(AddedFile(path, said.append).load()) == ["y"]
    assert len(said) == 1


def test_many_are_set_aside_and_not_too_many(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for _ in range(30):
        path.write_text("x")
        quarantine_file(path)
    assert len(list(tmp_path.iterdir())) < 12
