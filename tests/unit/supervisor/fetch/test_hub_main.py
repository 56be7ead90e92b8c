"""The program that looks at the hub client's cache and clears it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.supervisor.fetch import cache

OLD, NEW = "a" * 40, "b" * 40
BLOB = b"z" * 1000


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, each with a file of its own, and one that they share."""
    monkeypatch.setattr(cache, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--name"
    for name in ("blobs", "refs", f"snapshots/{OLD}", f"snapshots/{NEW}"):
        (folder / name).mkdir(parents=True)
    for name in ("of-old", "of-new", "shared"):
        (folder / "blobs" / name).write_bytes(BLOB)
    for commit, name in ((OLD, "of-old"), (OLD, "shared"), (NEW, "of-new"), (NEW, "shared")):
        (folder / "snapshots" / commit / name).symlink_to(f"../../blobs/{name}")
    (folder / "refs" / "v1").write_text(OLD)
    (folder / "refs" / "main").write_text(NEW)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dangling", [False, True])
def test_a_deleted_commit_leaves_what_others_need(repository: Path, dangling: bool) -> None:
    if dangling:
        (repository / "snapshots" / NEW / "gone").symlink_to("../../blobs/gone")
    (repository / "blobs" / "begun.incomplete").write_bytes(b"")
    assert cache.delete("org/name", [OLD]) == len(BLOB) + len(OLD)
    assert names(repository / "blobs") == ["begun.incomplete", "of-new", "shared"]
    assert names(repository / "refs") == ["main"]
    assert names(repository / "snapshots") == [NEW]


def test_a_deleted_file_leaves_the_others(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache.main(["delete", "org/name", NEW, "--file=of-new", "--file=gone"]) == 0
    assert json.loads(capsys.readouterr().out) == {"freed_bytes": len(BLOB)}
    assert names(repository / "blobs") == ["of-old", "shared"]
    assert names(repository / "snapshots" / NEW) == ["shared"]
    assert cache.delete("org/name", [NEW], ["shared"]) == 0
    assert names(repository / "blobs") == ["of-old", "shared"]
    assert names(repository / "refs") == ["main", "v1"]


def test_all_of_a_repository_goes_with_its_locks(repository: Path, tmp_path: Path) -> None:
    (tmp_path / ".locks" / repository.name).mkdir(parents=True)
    (tmp_path / "models--org--other").mkdir()
    freed_bytes = 3 * len(BLOB) + len(OLD) + len(NEW)
    assert cache.delete("org/name", []) == freed_bytes
    assert names(tmp_path) == [".locks", "models--org--other"]
    assert names(tmp_path / ".locks") == []
    assert cache.delete("org/name", []) == 0


def test_a_scan_shows_each_commit_with_its_names(repository: Path) -> None:
    (repository / "snapshots" / OLD / "gone.gguf").symlink_to("../../blobs/gone")
    (repository / "snapshots" / OLD / "q").mkdir()
    (repository / "snapshots" / OLD / "q" / "m.GGUF").symlink_to("../../../blobs/of-old")
    (found,) = cache.scan()
    assert [each["gguf"] for each in found["snapshots"]] == [
        {"q/m.GGUF": str((repository / "blobs" / "of-old").resolve())},
        {},
    ]
    assert (found["repo_id"], found["size_bytes"]) == ("org/name", 3 * len(BLOB) + 80)
    assert [(each["commit"], each["refs"]) for each in found["snapshots"]] == [
        (OLD, ["v1"]),
        (NEW, ["main"]),
    ]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), FileNotFoundError()])
def test_a_repository_that_cannot_be_read_is_left_out(
    repository: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """It is another user's, or is deleted meanwhile."""
    (repository.parent / "models--b--locked" / "snapshots").mkdir(parents=True)
    rglob = Path.rglob

    def read(folder: Path, pattern: str) -> Any:
        if "models--b--locked" in folder.parts:
            raise error
        return rglob(folder, pattern)

    monkeypatch.setattr(Path, "rglob", read)
    (found,) = cache.scan()
    assert found["repo_id"] == "org/name"


def test_what_can_not_be_read_of_one_costs_no_other(repository: Path) -> None:
    bad = repository / "snapshots" / ("c" * 40)
    bad.mkdir()
    (bad / "config.json").write_text("{}")
    (bad / "x.safetensors.index.json").write_bytes(b'{"weight_map": ' + b"[" * 5000)
    (repository / "refs" / "garbage").write_bytes(b"\xff" * 100)
    (repository / "refs" / "large").write_bytes(b"x" * 10_000)
    (found,) = cache.scan()
    reported = {each["commit"]: each["missing"] for each in found["snapshots"]}
    assert len(reported) > 1
    assert "damaged" in reported[bad.name]
