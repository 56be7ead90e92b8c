"""What on a disk is a model, whose it is, and what goes when it is deleted."""

import asyncio
import fcntl
import json
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.router.operators import models
from lmx.supervisor.config.model import ModelConfig
from lmx.supervisor.config.sources import parse_source
from lmx.supervisor.inventory import deletion, disk
from lmx.supervisor.inventory.delete_files import delete_files
from lmx.supervisor.inventory.disk import CachedRepo, Conversion, Snapshot
from lmx.supervisor.inventory.download_records import Download
from lmx.supervisor.inventory.on_disk import DeletionPlan, Served, available, plan_deletion, users
from lmx.supervisor.memory.files import STAMP_NAME, file_sizes
from lmx.supervisor.sockets import remote
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_peers import until

ROOT = Path("/cache/models--org--m")
MAIN = Snapshot("a" * 40, ("main",), ROOT / "snapshots" / ("a" * 40), None)
OLD = Snapshot("b" * 40, ("v1",), ROOT / "snapshots" / ("b" * 40), None)
REPO = CachedRepo("org/m", ROOT, 100, 5.0, (MAIN, OLD))
HALF = CachedRepo("org/half", Path("/cache/models--org--half"), 50, 5.0, ())
FILE = Path("/somewhere/m-Q4_0.gguf")
MADE = Conversion(Path("/home/models/m-int4"), FILE, 70, 6.0)
QUANTIZED = Conversion(Path("/home/models/m-4bit-0"), None, 30, 7.0)


def served(model_id: str, source: str) -> Served:
    return Served(model_id, parse_source(source))


def test_what_is_available() -> None:
    models = [served("mine", "org/m@main"), served("file", str(FILE))]
    found = available([REPO, HALF], [MADE], models)
    assert [(each.repo_id, each.size_bytes, each.model_id) for each in found] == [
        ("m-int4", 70, "file"),
        ("org/m", 100, "mine"),
    ]
    assert available([REPO], [], [])[0].model_id is None


def test_what_is_complete_is_available() -> None:
    lacking = CachedRepo("org/m", ROOT, 1, 5.0, (Snapshot("c", (), ROOT, "config.json"),))
    assert not available([lacking], [], [])
    gguf = Snapshot("c", (), ROOT, "config.json", {"m.gguf": FILE})
    assert available([CachedRepo("org/m", ROOT, 1, 5.0, (gguf,))], [], [])


def test_what_was_quantized_is_a_model_of_its_own() -> None:
    models = [served("m-4bit", str(QUANTIZED.path)), served("file", str(FILE))]
    (found,) = available([], [QUANTIZED], models)
    assert (found.repo_id, found.model_id) == ("m-4bit-0", "m-4bit")
    for target in (models[0], "m-4bit-0"):
        gone = plan_deletion(target, models, [REPO], [MADE, QUANTIZED])
        assert gone == DeletionPlan(folders=(QUANTIZED.path,))
        assert users(gone, models, [REPO]) == ("m-4bit",)


def gone_with(target: Served | str) -> DeletionPlan:
    return plan_deletion(target, (), [REPO, HALF], [MADE])


def test_what_goes_with_a_model() -> None:
    every = DeletionPlan("org/m", (), (ROOT,))
    assert gone_with("org/m") == every
    assert gone_with(served("x", "org/m")) == DeletionPlan("org/m", (MAIN.commit,), (MAIN.path,))
    assert gone_with(served("x", "org/m@v1")).commits == (OLD.commit,)
    assert gone_with(served("x", "org/m@v9")) == DeletionPlan()
    assert gone_with(served("x", "org/never")) == DeletionPlan()
    assert gone_with("org/half") == DeletionPlan("org/half", (), (HALF.path,))
    assert gone_with(served("x", str(FILE))) == DeletionPlan(folders=(MADE.path,), files=(FILE,))
    assert gone_with("m-int4") == DeletionPlan(folders=(MADE.path,), files=(FILE,))
    short = CachedRepo("mlx-community/Qwen3-8B-4bit", ROOT, 100, 5.0, (MAIN,))
    assert plan_deletion("qwen3-8b", (), [short], []).repo_id == short.repo_id


def test_one_gguf_file_of_a_repository_goes_without_the_others() -> None:
    q4, q8 = (ROOT / "blobs" / name for name in ("4", "8"))
    made = [Conversion(Path("/home/models") / file.name, file, 70, 6.0) for file in (q4, q8)]
    names = {"Q4/m.gguf": q4, "m-Q8.gguf": q8}
    both = Snapshot(MAIN.commit, ("main",), MAIN.path, "config.json", names)
    repo = CachedRepo("org/m", ROOT, 100, 5.0, (both,))
    models = [
        Served(file.name, parse_source(str(MAIN.path / name)), file) for name, file in names.items()
    ]
    models.append(served("whole", "org/m"))

    gone = plan_deletion(models[0], models, [repo], made)
    file = MAIN.path / "Q4" / "m.gguf"
    assert gone == DeletionPlan(
        "org/m", (MAIN.commit,), (file,), ("Q4/m.gguf",), (made[0].path,), (q4,)
    )
    assert users(gone, models, [repo]) == ("4",)
    downloads = [
        Download("dl", "org/m", None, name, 1.0, path=str(MAIN.path / name)) for name in names
    ]
    assert [gone.includes(each) for each in downloads] == [True, False]

    alone = replace(both, gguf={"m-Q8.gguf": q8})
    last = plan_deletion(models[1], models, [replace(repo, snapshots=(alone,))], made)
    assert (last.commits, last.snapshots, last.folders) == ((), (ROOT,), (made[1].path,))
    beside = replace(alone, missing=None)
    model_stays = plan_deletion(models[1], models, [replace(repo, snapshots=(beside,))], made)
    assert model_stays.names == ("m-Q8.gguf",)

    # With all of them go their conversions, except for that of a file of another commit.
    every = plan_deletion("org/m", models, [repo], made)
    assert every.folders == tuple(each.path for each in made)
    assert users(every, models, [repo]) == ("4", "8", "whole")
    older = replace(OLD, gguf={"m-Q8.gguf": q8})
    main = plan_deletion(models[2], models, [replace(repo, snapshots=(both, older))], made)
    assert (main.commits, main.folders) == ((MAIN.commit,), (made[0].path,))


def test_one_of_several_parts_goes_with_the_others() -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    first = MAIN.path / names[0]
    gguf = {"other.gguf": FILE, names[0]: first, names[1]: first}
    repo = CachedRepo("org/m", ROOT, 1, 5.0, (replace(MAIN, missing="x", gguf=gguf),))
    target = Served("m", parse_source(str(MAIN.path / names[1])), first)
    assert plan_deletion(target, [target], [repo], []).names == tuple(names)


def test_what_an_update_left_is_deleted_once_the_model_is_gone() -> None:
    left = replace(OLD, refs=())
    repo = replace(REPO, snapshots=(MAIN, left))
    mine = served("mine", "org/m")
    assert plan_deletion(mine, [mine], [repo], []).commits == (MAIN.commit,)
    repo = replace(REPO, snapshots=(left,))
    assert plan_deletion(mine, [mine], [repo], []).snapshots == (ROOT,)
    repo = replace(REPO, snapshots=(left, replace(left, commit="c" * 40, path=ROOT / "c")))
    for source in (f"org/m@{left.commit}", str(left.path)):
        gone = plan_deletion(mine, [mine, served("old", source)], [repo], [])
        assert gone.commits == ("c" * 40,)


def test_what_goes_with_a_repository_was_not_downloaded() -> None:
    every, main = gone_with("org/m"), gone_with(served("x", "org/m"))
    quantized = plan_deletion("m-4bit-0", (), [], [QUANTIZED])
    begun = Download("dl_0", "org/m", None, None, 1.0)
    whole = replace(begun, path=str(MAIN.path))
    made = replace(begun, repo_id="org/other", path=str(QUANTIZED.path))
    for gone, found in ((every, [True, True, False]), (main, [False, True, False])):
        assert [gone.includes(each) for each in (begun, whole, made)] == found
    assert [quantized.includes(each) for each in (begun, whole, made)] == [False, False, True]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("org/gone", ErrorCode.MODEL_NOT_FOUND),
        ("../models--org--m", ErrorCode.MODEL_NOT_FOUND),
        ("models--org--m", ErrorCode.MODEL_NOT_FOUND),
        ("", ErrorCode.MODEL_NOT_FOUND),
        (served("x", "/my/folder"), ErrorCode.NOT_DELETABLE),
        (served("x", "/my/other.gguf"), ErrorCode.NOT_DELETABLE),
    ],
)
def test_what_stays(target: Served | str, code: ErrorCode) -> None:
    with pytest.raises(OperationError) as refused:
        gone_with(target)
    assert refused.value.code is code


def test_who_needs_what_goes() -> None:
    models = [
        served("main", "org/m"),
        served("old", "org/m@v1"),
        served("commit", f"org/m@{OLD.commit}"),
        served("folder", str(OLD.path)),
        served("file", str(FILE)),
        served("other", "org/other"),
    ]

    def needed_by(target: Served | str) -> tuple[str, ...]:
        return users(gone_with(target), models, [REPO, HALF])

    assert needed_by("org/m") == ("main", "old", "commit", "folder")
    assert needed_by(served("x", "org/m")) == ("main",)
    assert needed_by(served("x", "org/m@v1")) == ("old", "commit", "folder")
    assert needed_by("m-int4") == ("file",)
    assert needed_by(served("x", "org/never")) == ()


def test_a_draft_model_and_adapters_are_needed_too() -> None:
    def of(model_id: str, **settings: Any) -> Served:
        model = ModelConfig.model_validate({"id": model_id, "source": "/large", **settings})
        return Served.of(model, None)

    models = [
        of("drafted", speculation={"method": "draft_model", "draft": str(OLD.path)}),
        of("quantized", speculation={"method": "draft_model", "draft": str(QUANTIZED.path)}),
        of("folder", adapters={"f": str(OLD.path / "adapter")}),
        of("hub", adapters={"h": "org/m@v1"}),
        of("none"),
    ]
    old = gone_with(served("x", "org/m@v1"))
    assert users(old, models, [REPO]) == ("drafted", "folder", "hub")
    made = plan_deletion(QUANTIZED.path.name, (), [], [QUANTIZED])
    assert users(made, models, [REPO]) == ("quantized",)


async def test_a_deletion_may_take_longer_than_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--m" / "snapshots").mkdir(parents=True)
    monkeypatch.setattr(disk, "_SCAN_S", 0.0)
    with pytest.raises(OperationError, match="not read within 0 s"):
        await disk.scan_hub()
    assert await disk.delete_from_hub("org/m", ()) == 0
    assert not (tmp_path / "models--org--m").exists()
    monkeypatch.setattr(disk, "_DELETE_S", 0.0)
    with pytest.raises(OperationError, match="not cleared of org/m within 0 s"):
        await disk.delete_from_hub("org/m", ())


async def test_a_disk_that_does_not_answer_keeps_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), list[Path]()

    def hangs(folder: Path) -> None:
        asked.append(folder)
        answers.wait(60)

    (tmp_path / "made").mkdir()
    monkeypatch.setattr(disk, "_conversion", hangs)
    monkeypatch.setattr(disk, "_delete_folder", hangs)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "_SCAN_S", 0.05)
        patch.setattr(disk, "_DELETE_S", 0.05)
        for _ in range(3):
            with pytest.raises(OperationError, match="not read within"):
                await disk.scan_conversions(tmp_path)
            await until(lambda: len(asked) == 1)
        with pytest.raises(OperationError, match="not deleted within"):
            await disk.delete_folder(tmp_path / "made")
        await until(lambda: len(asked) == 2)
    # The loop's own threads, which it waits for at its end, are free.
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 60)
    answers.set()
    assert await disk.scan_conversions(tmp_path) == []


async def test_what_can_not_be_listed_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nprintf 'models--a--b\\033 can not be read\\n' >&2\necho '[]'\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    with caplog.at_level(logging.WARNING, logger=disk.__name__):
        assert await disk.scan_hub() == []
    assert caplog.messages == [r"the hub's cache: models--a--b\x1b can not be read"]


async def test_what_was_left_unfinished_is_deleted_unless_it_is_being_made(tmp_path: Path) -> None:
    models = Home(tmp_path).models
    assert await disk.delete_unfinished(models) == 0
    for name in ("left-0.6b", "made"):
        folder = models / f".{name}.part" / "model"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"12345")
        (models / f".{name}.lock").touch()
    (models / "whole").mkdir()
    with (models / ".made.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await disk.delete_unfinished(models) == 5
        assert {path.name for path in models.iterdir() if path.is_dir()} == {".made.part", "whole"}
    assert await delete_files(DeletionPlan(), Home(tmp_path), ()) == 5
    assert [path.name for path in models.iterdir() if path.is_dir()] == ["whole"]


async def test_folders_that_change_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, stamp in (("a", {"source": "/a.gguf"}), ("b", {}), ("c", {"source": 3})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.safetensors").write_bytes(b"123")
        whole = {**stamp, "files": file_sizes(tmp_path / name)}
        (tmp_path / name / STAMP_NAME).write_text(json.dumps(whole))
    (made,) = await disk.scan_conversions(tmp_path)
    assert made.source == Path("/a.gguf")
    lstat = Path.lstat

    def deletes(path: Path) -> os.stat_result:
        if path.name == "w.safetensors":
            path.unlink()
        return lstat(path)

    monkeypatch.setattr(disk, "whole_conversion", lambda folder: {"source": "/a.gguf"})
    monkeypatch.setattr(Path, "lstat", deletes)
    sizes = [each.size_bytes for each in await disk.scan_conversions(tmp_path)]
    stamps = (tmp_path / name / STAMP_NAME for name in "abc")
    assert sizes == [stamp.stat().st_size for stamp in stamps]


def test_who_asks_for_a_deletion_waits_for_as_long_as_it_may_take() -> None:
    longest_s = deletion._UNLOAD_S + disk._SCAN_S + disk._DELETE_S
    assert min(remote.DELETE_S, models._DELETE_DEADLINE_S) > longest_s
