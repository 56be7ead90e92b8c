"""Backups: what is in them, who may read them, and what of a strange archive is refused."""

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import sqlite3
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import OperationError
from lmx.supervisor.state import backup
from lmx.supervisor.state.backup import FILES, restore_backup, write_backup
from lmx.supervisor.state.home import Home

NOW_S = 1_800_000_000.0


def filled(folder: Path) -> Home:
    """A home with every file of a backup, each with its own name in it, and others."""
    home = Home(folder)
    home.prepare()
    for name in FILES:
        if name.endswith(".sqlite"):
            with contextlib.closing(sqlite3.connect(home.path / name)) as database:
                database.execute("CREATE TABLE usage (name TEXT)")
                database.execute("INSERT INTO usage VALUES (?)", (name,))
                database.commit()
        else:
            (home.path / name).write_text(json.dumps({"name": name}))
    (home.logs / "router.log").write_text("a log")
    (home.models / "weights").write_text("a model")
    return home


def contents(home: Home) -> dict[str, bytes]:
    """What the files hold; of a database that it may be in pages of another order."""
    found = {}
    for name in FILES:
        path = home.path / name
        if path.suffix == ".sqlite" and path.exists():
            with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
                found[name] = "".join(file.iterdump()).encode()
        elif path.exists():
            found[name] = path.read_bytes()
    return found


def written(home: Home, target: Path, config: Path | None = None) -> list[str]:
    notes: list[str] = []
    found = write_backup(home, config or home.default_config, target, "1.2.3", notes.append)
    assert notes == []
    return found


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    target = tmp_path / "whole.zip"
    assert written(filled(tmp_path / "home"), target) == list(FILES)
    return target


def test_a_backup_holds_what_matters_and_is_its_owners_alone(whole: Path) -> None:
    assert stat.S_IMODE(whole.stat().st_mode) == 0o600
    with zipfile.ZipFile(whole) as archive:
        assert set(archive.namelist()) == {*FILES, "manifest.json"}
        about = json.loads(archive.read("manifest.json"))
    assert (about["format"], about["lmx"]) == (backup.FORMAT, "1.2.3")
    assert sorted(path.name for path in whole.parent.iterdir()) == ["home", "whole.zip"]


def test_every_file_of_a_home_that_is_remembered_is_in_it_or_known_not_to_be() -> None:
    """A new file of the state is in backups, or somebody decided that it need not be."""
    left_out = {
        "state", "state/measured.json", "state/launch.json", "state/events.jsonl",
        "state/downloads.json", "state/jobs.sqlite", "state/launch", "lock", "logs", "models",
        "cache", "tmp", "logs/fetch.log", "logs/spare.log", "files",
    }  # fmt: skip
    home = Home(Path("/home"))
    places = {
        str(value.relative_to("/home"))
        for name in vars(Home)
        if isinstance(value := getattr(home, name, None), Path) and value != home.path
    }
    logs = {"logs/router.log", "logs/supervisor.log"}
    assert places - left_out - logs <= set(FILES)


def test_it_comes_back_into_another_home(whole: Path, tmp_path: Path) -> None:
    before = contents(Home(tmp_path / "home"))
    other = Home(tmp_path / "other")
    restored = restore_backup(other, whole, NOW_S)
    assert restored.kept is None
    assert restored.manifest.version == "1.2.3"
    assert contents(other) == before
    assert {stat.S_IMODE((other.path / name).stat().st_mode) for name in FILES} == {0o600}


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    small = Home(tmp_path / "small")
    small.prepare()
    small.default_config.write_text("models: []\n")
    written(small, tmp_path / "small.zip")
    home = filled(tmp_path / "home")
    before = contents(home)
    (home.path / "state/usage.sqlite-wal").write_bytes(b"a journal")
    restored = restore_backup(home, tmp_path / "small.zip", NOW_S)
    assert restored.kept is not None
    assert contents(home) == {"lmx.yaml": b"models: []\n"}
    assert contents(Home(restored.kept)) == before
    assert (restored.kept / "state/usage.sqlite-wal").read_bytes() == b"a journal"
    assert not (home.path / "state/usage.sqlite-wal").exists()
    assert (home.models / "weights").read_text() == "a model"
    assert not list(home.path.glob(".restore-*"))


def test_a_database_that_is_written_to_is_copied_whole(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    path = home.path / "state/usage.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("INSERT INTO usage VALUES ('committed')")
        writer.commit()
        writer.execute("INSERT INTO usage VALUES ('not committed')")
        (tmp_path / ".b.zip.sqlite").write_text("of a user")
        written(home, tmp_path / "b.zip")
    assert (tmp_path / ".b.zip.sqlite").read_text() == "of a user"
    restore_backup(Home(tmp_path / "other"), tmp_path / "b.zip", NOW_S)
    with contextlib.closing(sqlite3.connect(tmp_path / "other/state/usage.sqlite")) as database:
        rows = [name for (name,) in database.execute("SELECT name FROM usage")]
    assert rows == ["state/usage.sqlite", "committed"]


@pytest.mark.parametrize("name", ["lmx.yaml", "state/usage.sqlite"])
def test_a_full_disk_leaves_no_half_of_a_backup(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, add = filled(tmp_path / "home"), backup._add

    def full(archive: zipfile.ZipFile, its_name: str, content: Any) -> str:
        if its_name == name:
            raise OSError(errno.ENOSPC, "no space left")
        return add(archive, its_name, content)

    monkeypatch.setattr(backup, "_add", full)
    with pytest.raises(OSError, match="no space left"):
        written(home, tmp_path / "b.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    (home.path / "state/usage.sqlite").write_bytes(b"nonsense" * 1000)
    home.pins.unlink()
    home.pins.mkdir()
    notes: list[str] = []
    names = write_backup(home, None, tmp_path / "b.zip", "1", notes.append)
    assert set(FILES) - set(names) == {"lmx.yaml", "state/pins.json", "state/usage.sqlite"}
    assert [note.partition(" ")[0] for note in notes] == [
        str(home.pins),
        str(home.path / "state/usage.sqlite"),
    ]


def test_nothing_is_written_over_and_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    home, target = filled(tmp_path / "home"), tmp_path / "b.zip"
    target.write_text("somebody's")
    with pytest.raises(OperationError, match="is there already"):
        written(home, target)
    assert target.read_text() == "somebody's"
    empty = Home(tmp_path / "empty")
    with pytest.raises(OperationError, match="nothing that a backup would keep"):
        written(empty, tmp_path / "empty.zip")
    assert not (tmp_path / "empty.zip").exists()


def test_a_configuration_elsewhere_is_in_it(tmp_path: Path) -> None:
    home, elsewhere = filled(tmp_path / "home"), tmp_path / "etc.yaml"
    elsewhere.write_text("server: {port: 1234}\n")
    written(home, tmp_path / "b.zip", elsewhere)
    restore_backup(Home(tmp_path / "other"), tmp_path / "b.zip", NOW_S)
    assert Home(tmp_path / "other").default_config.read_text() == "server: {port: 1234}\n"


Change = Callable[[dict[str, bytes], list[tuple[zipfile.ZipInfo, bytes]]], None]


def evil(name: str, content: bytes = b"x", mode: int = stat.S_IFREG | 0o600) -> Change:
    def change(_files: dict[str, bytes], more: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        more.append((info, content))

    return change


def manifest(**changes: object) -> Change:
    def change(files: dict[str, bytes], _more: object) -> None:
        about = json.loads(files["manifest.json"]) | changes
        files["manifest.json"] = json.dumps(about).encode()

    return change


def removed(name: str) -> Change:
    return lambda files, _more: files.__delitem__(name)


def replaced(name: str, content: bytes) -> Change:
    return lambda files, _more: files.__setitem__(name, content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (evil("../../evil"), "not part of a backup"),
        (evil("/etc/passwd"), "not part of a backup"),
        (evil("state/../../evil"), "not part of a backup"),
        (evil("state/workers.json"), "not part of a backup"),
        (evil("state/"), "not part of a backup"),
        (evil("lmx.yaml", b"/etc/passwd", stat.S_IFLNK | 0o777), "not part of a backup"),
        (evil("lmx.yaml"), "does not hold the files"),
        (evil("manifest.json", b"{}"), "has no manifest"),
        (removed("manifest.json"), "has no manifest"),
        (removed("lmx.yaml"), "does not hold the files"),
        (manifest(format=2), "backup of format 2, written by lmx '1.2.3'"),
        (manifest(format="1"), "backup of format '1'"),
        (manifest(files=[]), "does not hold the files"),
        (manifest(files=3), "manifest.json is damaged"),
        (replaced("manifest.json", b"[" * 60_000), "manifest.json is damaged"),
        (replaced("manifest.json", b" " * 70_000), "larger than"),
        (replaced("admin.key", b"another"), "admin.key in .* is damaged"),
        (replaced("admin.key", bytes(2 << 20)), "larger than"),
        (replaced("state/usage.sqlite", b"no database"), "is damaged"),
    ],
)
def test_a_hostile_archive_changes_nothing(
    whole: Path, tmp_path: Path, change: Change, words: str
) -> None:
    with zipfile.ZipFile(whole) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    more: list[tuple[zipfile.ZipInfo, bytes]] = []
    change(files, more)
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for info, content in more:
            archive.writestr(info, content)
    home = Home(tmp_path / "home")
    before = contents(home)
    with pytest.raises(OperationError, match=words):
        restore_backup(home, bad, NOW_S)
    assert contents(home) == before
    assert not list(home.path.glob("*restore-*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip", "home", "whole.zip"]


def test_many_entries_are_refused_before_they_are_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as archive:
        for number in range(3000):
            archive.writestr(f"{number}", b"")
    with pytest.raises(OperationError, match="too many files"):
        restore_backup(Home(tmp_path / "home"), bad, NOW_S)


def test_damaged_bytes_are_refused_in_words_or_change_nothing_that_counts(
    whole: Path, tmp_path: Path
) -> None:
    content, chance = whole.read_bytes(), random.Random(1)
    good = contents(Home(tmp_path / "home"))
    bad, home = tmp_path / "bad.zip", Home(tmp_path / "other")
    outcomes = set()
    for number in range(200):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        bad.write_bytes(damaged[: chance.randrange(len(damaged))] if number % 5 == 0 else damaged)
        try:
            restore_backup(home, bad, NOW_S)
        except OperationError:
            outcomes.add("refused")
        else:
            outcomes.add("restored")
            assert contents(home) == good
        # The lock is this process's own now.
        shutil.rmtree(home.path, ignore_errors=True)
    assert "refused" in outcomes


@pytest.mark.parametrize("failure", [OSError("the disk failed"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_what_was_there(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    home = Home(tmp_path / "home")
    home.default_config.write_text("# newer\n")
    before = contents(home)
    move, count = backup._move, 0

    def failing(one: Path, other: Path, moved: list[tuple[Path, Path]]) -> None:
        nonlocal count
        count += 1
        if count == len(FILES) + 3 and isinstance(failure, OSError):
            raise failure
        move(one, other, moved)
        if count == len(FILES) + 3:
            raise failure

    monkeypatch.setattr(backup, "_move", failing)
    with pytest.raises(type(failure)):
        restore_backup(home, whole, NOW_S)
    assert contents(home) == before
    assert not list(home.path.glob("*restore-*"))


def test_a_home_that_is_in_use_is_not_touched(whole: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    before = contents(home)
    with home.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        print(os.getpid(), file=held, flush=True)
        with pytest.raises(OperationError, match="is running already"):
            restore_backup(home, whole, NOW_S)
    assert contents(home) == before
