"""Downloads and deletion as an operator has them: real supervisor, real fetch programs, and a hub
on the loopback interface."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.control import LoadModel
from lmx.protocol.messages.inventory import (
    Available,
    CancelDownload,
    Deleted,
    DeleteModel,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    StartDownload,
)
from lmx.protocol.states import DownloadStatus
from lmx.supervisor.config.known_models import KNOWN_MODELS
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.download_records import DownloadFile
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_hub import FakeHub, Fault, fake_hub
from tests.support.models.model_folders import PLAIN, write_model
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import Rig, rig, scripted, wait_until

pytestmark = pytest.mark.long

WEIGHTS = "model.safetensors"
WEIGHTS_BYTES = 300_000
HALF_BYTES = 150_000


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        yield running


@pytest.fixture(scope="module")
def lmx(hub: FakeHub) -> Iterator[Rig]:
    before = dict(os.environ)
    os.environ["HF_ENDPOINT"] = hub.endpoint
    try:
        with rig({"models": [scripted("ready")]}) as running:
            yield running
    finally:
        os.environ.clear()
        os.environ.update(before)


def repository(hub: FakeHub, folder: Path, name: str) -> str:
    """Have the hub hold a model of random weights under a name of its own; returns that. A name
    without an organisation is one of ``org``."""
    repo_id = name if "/" in name else f"org/{name}"
    made = write_model(folder / repo_id.replace("/", "--"), WEIGHTS_BYTES)
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    # Not the same bytes in each: the client keeps files by their content.
    head = len(files[WEIGHTS]) - WEIGHTS_BYTES
    files[WEIGHTS] = files[WEIGHTS][:head] + os.urandom(WEIGHTS_BYTES)
    hub.add(repo_id, {**files, "tokenizer.json": json.dumps({"of": repo_id}).encode()})
    return repo_id


def view(lmx: Rig, download_id: str) -> DownloadView:
    found: Downloads = lmx.ask(GetDownloads(download_id))
    return found.downloads[0]


def wait_status(lmx: Rig, download_id: str, status: DownloadStatus) -> DownloadView:
    def there() -> DownloadView | None:
        found = view(lmx, download_id)
        return found if found.status is status else None

    found: DownloadView = wait_until(there, f"{download_id} is {status}")
    return found


def available(lmx: Rig) -> dict[str, Any]:
    found: Available = lmx.ask(GetAvailable())
    return {model.repo_id: model for model in found.models}


def stuck(hub: FakeHub, lmx: Rig, repo_id: str) -> DownloadView:
    """Start a download that goes no further than half of its weights."""
    hub.served.clear()
    hub.faults[WEIGHTS] = Fault(wait_after_bytes=HALF_BYTES)
    started: DownloadView = lmx.ask(StartDownload(repo_id))
    wait_until(lambda: hub.served[WEIGHTS] >= HALF_BYTES, "half of it came")
    # What the hub has sent is on its way for a moment longer.
    blobs = lmx.home / "hub" / "hub" / f"models--{repo_id.replace('/', '--')}" / "blobs"
    wait_until(
        lambda: any(p.stat().st_size > HALF_BYTES // 2 for p in blobs.glob("*.incomplete")),
        "it was written",
    )
    return started


def fetches(lmx: Rig) -> list[psutil.Process]:
    return lmx.running("lmx.supervisor.fetch.main")


def test_several_at_once_are_served_once_they_have_come(
    hub: FakeHub, lmx: Rig, tmp_path: Path
) -> None:
    hub.faults.clear()
    names = [repository(hub, tmp_path, f"several-{number}") for number in range(5)]
    started: list[DownloadView] = [lmx.ask(StartDownload(name)) for name in names]
    for each, name in zip(started, names, strict=True):
        done = wait_status(lmx, each.download_id, DownloadStatus.COMPLETED)
        assert (done.model_id, done.total_bytes) == (name, done.downloaded_bytes)
        assert lmx.worker(name)["state"] == "cold"
    found = available(lmx)
    assert [found[name].model_id for name in names] == names
    again: DownloadView = lmx.ask(StartDownload(names[0]))
    assert again.download_id == started[0].download_id
    wait_status(lmx, again.download_id, DownloadStatus.COMPLETED)
    assert len(lmx.events("download.completed")) == 6


def test_one_file_is_served_by_its_own_name(hub: FakeHub, lmx: Rig) -> None:
    files = {f"Small-1B-Q{bits}.gguf": b"GGUF %d" % bits * 1000 for bits in (4, 8)}
    hub.add("org/files", {**files, "notes.txt": b"read me"})
    notes: DownloadView = lmx.ask(StartDownload("org/files", filename="notes.txt"))
    assert wait_status(lmx, notes.download_id, DownloadStatus.COMPLETED).model_id is None
    assert "org/files" not in available(lmx)
    file: DownloadView = lmx.ask(StartDownload("org/files", filename="Small-1B-Q4.gguf"))
    assert wait_status(lmx, file.download_id, DownloadStatus.COMPLETED).model_id == "small-1b"
    assert lmx.worker("small-1b")["state"] == "cold"
    assert available(lmx)["org/files"].model_id == "small-1b"
    hub.served.clear()
    again: DownloadView = lmx.ask(StartDownload("org/files", filename="Small-1B-Q4.gguf"))
    assert (again.download_id, again.status) == (file.download_id, DownloadStatus.COMPLETED)
    assert not hub.served
    other: DownloadView = lmx.ask(StartDownload("org/files", filename="Small-1B-Q8.gguf"))
    other = wait_status(lmx, other.download_id, DownloadStatus.COMPLETED)
    assert "'small-1b' is taken" in str(other.error)
    deleted: Deleted = lmx.ask(DeleteModel("small-1b"))
    assert deleted.freed_bytes == len(files["Small-1B-Q4.gguf"])
    assert available(lmx)["org/files"].model_id is None
    served: DownloadView = lmx.ask(StartDownload("org/files", filename="Small-1B-Q8.gguf"))
    assert (served.status, served.model_id) == (DownloadStatus.COMPLETED, "small-1b")
    removed = lmx.cli("rm", "org/files")
    assert removed.returncode == 0, removed
    freed, forgotten = removed.stdout.splitlines()
    assert (freed.startswith("deleted org/files: "), forgotten.endswith(": small-1b")) == (
        True,
        True,
    )
    assert "org/files" not in available(lmx)


def test_a_cancelled_one_resumes_where_it_stopped(hub: FakeHub, lmx: Rig, tmp_path: Path) -> None:
    name = repository(hub, tmp_path, "cancelled")
    started = stuck(hub, lmx, name)
    same: DownloadView = lmx.ask(StartDownload(name))
    assert same.download_id == started.download_id
    cancelled: DownloadView = lmx.ask(CancelDownload(started.download_id))
    assert cancelled.status is DownloadStatus.CANCELLED
    assert fetches(lmx) == []
    assert name not in available(lmx)

    hub.faults.clear()
    hub.served.clear()
    again: DownloadView = lmx.ask(StartDownload(name))
    assert again.download_id == started.download_id
    wait_status(lmx, again.download_id, DownloadStatus.COMPLETED)
    assert 0 < hub.served[WEIGHTS] < WEIGHTS_BYTES - HALF_BYTES // 2
    assert name in available(lmx)


def test_one_whose_process_is_killed_has_failed_and_is_no_model(
    hub: FakeHub, lmx: Rig, tmp_path: Path
) -> None:
    name = repository(hub, tmp_path, "killed")
    started = stuck(hub, lmx, name)
    fetches(lmx)[0].kill()
    failed = wait_status(lmx, started.download_id, DownloadStatus.FAILED)
    assert failed.error_code is ErrorCode.DOWNLOAD_FAILED
    assert name not in available(lmx)
    assert name not in [worker["model"] for worker in lmx.status()["workers"]]
    hub.faults.clear()


def test_one_outlives_the_supervisor(hub: FakeHub, lmx: Rig, tmp_path: Path) -> None:
    name = repository(hub, tmp_path, "outlived")
    started = stuck(hub, lmx, name)
    assert lmx.supervisor is not None
    lmx.supervisor.send_signal(signal.SIGKILL)
    lmx.supervisor.wait(90)
    wait_until(lambda: fetches(lmx) == [], "the fetch ends without its supervisor")
    left = lmx.home / "models" / ".of-a-killed-one.part"
    left.mkdir()
    lmx.up()
    wait_until(lambda: not left.exists(), "what was left unfinished is deleted")
    assert view(lmx, started.download_id).status is DownloadStatus.INTERRUPTED
    assert name not in available(lmx)

    stuck_again = lmx.ask(StartDownload(name))
    assert stuck_again.download_id == started.download_id
    assert lmx.cli("restart", "--supervisor").returncode == 0
    hub.faults.clear()
    done = wait_status(lmx, started.download_id, DownloadStatus.COMPLETED)
    assert done.model_id == name
    assert lmx.worker(name)["state"] == "cold"


def test_what_is_loaded_is_not_deleted(hub: FakeHub, lmx: Rig, tmp_path: Path) -> None:
    hub.faults.clear()
    name = repository(hub, tmp_path, "deleted")
    wait_status(lmx, lmx.ask(StartDownload(name)).download_id, DownloadStatus.COMPLETED)
    lmx.configure({"models": [scripted("ready"), scripted("same", source=name)]})
    assert lmx.cli("reload").returncode == 0
    lmx.ask(LoadModel("same"))
    lmx.wait_state("same", "ready")
    for model in (name, "same"):
        with pytest.raises(OperationError, match="same is loaded") as refused:
            lmx.ask(DeleteModel(model))
        assert refused.value.code is ErrorCode.MODEL_LOADED
    path = Path(available(lmx)[name].local_path)
    assert path.is_dir()

    deleted: Deleted = lmx.ask(DeleteModel(name, force=True))
    assert deleted.freed_bytes > WEIGHTS_BYTES
    (reported,) = lmx.events("model.deleted")
    assert (reported.model_id, reported.data["freed_bytes"]) == (name, deleted.freed_bytes)
    assert not path.exists()
    assert name not in available(lmx)
    assert lmx.worker("same")["state"] == "cold"
    assert name not in [worker["model"] for worker in lmx.status()["workers"]]
    for model, code in (
        ("ready", ErrorCode.NOT_DELETABLE),
        (name, ErrorCode.MODEL_NOT_FOUND),
        ("../../etc", ErrorCode.MODEL_NOT_FOUND),
    ):
        with pytest.raises(OperationError) as refused:
            lmx.ask(DeleteModel(model, force=True))
        assert refused.value.code is code


def test_the_command_line(hub: FakeHub, lmx: Rig, tmp_path: Path) -> None:
    hub.faults.clear()
    name = repository(hub, tmp_path, "by-hand")
    done = lmx.cli("download", name)
    assert (done.returncode, f"{name} is served" in done.stdout) == (0, True), done
    size, room, context, now, _ = done.stdout.splitlines()
    assert re.fullmatch(rf"{name}: 29\d KiB; 29\d KiB to download, [\d.]+ .iB free in /.+", size)
    assert re.fullmatch(r"fits: it takes .+ of the [\d.]+ GiB that models may take of .+", room)
    assert re.fullmatch(r"context: (\d+) tokens; the longest that fits: \1.*", context)
    assert re.fullmatch(rf"{name} needs .+ are free: it starts at once", now)
    listed = lmx.cli("available").stdout.splitlines()
    assert listed[0].split() == ["MODEL", "KIND", "SIZE", "SERVED", "AS"]
    assert [line.split() for line in listed if line.startswith(name)] == [
        [name, "chat", "293", "KiB", name]
    ]
    refused = lmx.cli("download", "org/gone")
    assert (refused.returncode, "no repository org/gone" in refused.stderr) == (1, True), refused
    assert name in lmx.cli("downloads").stdout
    assert "freed" in lmx.cli("delete", name).stdout
    assert name not in lmx.cli("available").stdout


def test_one_is_quantized_and_measured(hub: FakeHub, lmx: Rig, tmp_path: Path) -> None:
    hub.faults.clear()
    hub.add_folder("org/whole", make_tiny_model(tmp_path / "whole", "llama"))
    done = lmx.cli("pull", "org/whole", "--bits", "4")
    assert done.returncode == 0, done
    first, second, *_, measured, last = done.stdout.splitlines()
    assert first.startswith("org/whole: ")
    assert second.startswith("quantized to 4 bits it takes about ")
    assert "by lmx, from org/whole" in measured and "before, " in measured
    assert last == "whole-4bit is served: its first request loads it"
    assert (
        f"quantized  {measured.removeprefix('quantized ')}" in lmx.cli("show", "whole-4bit").stdout
    )
    lmx.ask(LoadModel("whole-4bit"))
    wait_until(lambda: lmx.worker("whole-4bit")["state"] == "ready", "it is loaded")
    made = [each for each in available(lmx).values() if each.model_id == "whole-4bit"]
    assert [Path(each.local_path).name for each in made] == [made[0].repo_id]
    assert available(lmx)["org/whole"].model_id is None, "the original is not served"
    # What has been made is no original.
    refused = lmx.cli("pull", made[0].local_path, "--bits", "8")
    assert (refused.returncode, "is quantized already" in refused.stderr) == (1, True), refused
    deleted: Deleted = lmx.ask(DeleteModel("whole-4bit", force=True))
    assert deleted.freed_bytes == made[0].size_bytes
    assert not Path(made[0].local_path).exists()
    hub.asked.clear()
    hub.add(
        "org/small",
        {
            "config.json": b'{"model_type": "llama", "quantization": {"bits": 4}}',
            "tokenizer.json": b"{}",
            WEIGHTS: write_model(tmp_path / "s").joinpath(WEIGHTS).read_bytes(),
        },
    )
    status, body, _ = post(lmx, "org/small", bits="mixed")
    assert (status, "is quantized already" in body["error"]["message"]) == (400, True), body
    assert not (lmx.home / "hub" / "hub" / "models--org--small" / "snapshots").exists()


def test_pull_list_and_rm_without_a_running_lmx(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.clear()
    qwen = repository(hub, tmp_path, KNOWN_MODELS["qwen3-0.6b"])
    large = repository(hub, tmp_path, "large")
    alone = Rig({"models": []}, {"HF_ENDPOINT": hub.endpoint})
    try:
        # A short name names its repository.
        done = alone.cli("pull", "qwen3-0.6b")
        assert done.returncode == 0, done
        assert done.stdout.splitlines()[0].startswith(f"{qwen}: ")
        assert done.stdout.splitlines()[-1].startswith(f"{qwen} is downloaded: `lmx serve`")
        assert f"{qwen}  chat" in alone.cli("list").stdout
        hub.claimed_bytes[WEIGHTS] = 10**16
        refused = alone.cli("pull", large)
        assert (refused.returncode, refused.stdout.count("\n")) == (1, 2), refused
        assert f"{large}: 9313225.7 GiB; 9313225.7 GiB to download" in refused.stdout
        assert "the disk lacks 93131" in refused.stdout
        assert "nothing was downloaded: " in refused.stderr
        assert (
            "no downloads" in alone.cli("downloads").stdout
            or large not in alone.cli("downloads").stdout
        )
        # What was pulled is served by the lmx that is started then.
        alone.up()
        assert alone.worker(qwen)["state"] == "cold"
        (kept,) = alone.ask(GetDownloads()).downloads
        assert (kept.repo_id, kept.status) == (qwen, DownloadStatus.COMPLETED)
        alone.stop()
        # Its files go, and it is served no more.
        assert f"completed  {qwen}" in alone.cli("downloads").stdout
        refused = alone.cli("rm", "org/none")
        assert (refused.returncode, "no model is named 'org/none'" in refused.stderr) == (1, True)
        deleted = alone.cli("rm", qwen)
        assert deleted.stdout.startswith(f"deleted {qwen}: 293 KiB freed"), deleted
        home = Home(alone.home)
        assert AddedFile(home.added_models).read() == {}
        assert DownloadFile(home.downloads).read() == []
    finally:
        hub.claimed_bytes.clear()
        alone.close()


# What is refused before anything has begun.


def post(lmx: Rig, repo_id: str, **more: Any) -> tuple[int, Any, str | None]:
    """Ask for a download over HTTP; returns status, body and Retry-After."""
    key = (lmx.home / "admin.key").read_text().strip()
    request = urllib.request.Request(
        f"{lmx.url.removesuffix('/v1')}/admin/models/download",
        data=json.dumps({"repo_id": repo_id, **more}).encode(),
        headers={"X-Admin-Key": key, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, json.load(response), response.headers["Retry-After"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers["Retry-After"]


def test_a_disk_that_is_too_small_is_a_507_and_nothing_has_begun(
    hub: FakeHub, lmx: Rig, tmp_path: Path
) -> None:
    hub.faults.clear()
    name = repository(hub, tmp_path, "too-large")
    hub.claimed_bytes[WEIGHTS] = 10**16
    try:
        hub.served.clear()
        status, body, _ = post(lmx, name)
    finally:
        del hub.claimed_bytes[WEIGHTS]
    assert (status, body["error"]["code"]) == (507, "insufficient_disk")
    assert "10000000.00 GB" in body["error"]["message"]
    assert hub.served[WEIGHTS] == 0


@pytest.mark.parametrize("asked", ["30", "120"])
def test_a_hub_that_takes_no_more_requests_is_a_503_with_its_own_time(
    hub: FakeHub, lmx: Rig, tmp_path: Path, asked: str
) -> None:
    name = repository(hub, tmp_path, f"busy-{asked}")
    hub.faults.clear()
    hub.faults["api"] = Fault(status=429, headers={"Retry-After": asked})
    try:
        status, body, retry_after = post(lmx, name)
    finally:
        hub.faults.clear()
    assert (status, body["error"]["code"]) == (503, "download_failed")
    assert retry_after == asked
    assert "(429)" in body["error"]["message"]
    # Asked for again when the hub answers, it comes.
    status, body, _ = post(lmx, name)
    assert status == 200
    wait_status(lmx, body["download_id"], DownloadStatus.COMPLETED)


def test_one_whose_files_can_not_be_read_is_not_served(
    hub: FakeHub, lmx: Rig, tmp_path: Path
) -> None:
    hub.faults.clear()
    name = repository(hub, tmp_path, "surrogate")
    config = {**PLAIN, "model_type": "\ud800"}
    hub.add(name, {
        "config.json": json.dumps(config).encode(), "tokenizer.json": b"{}",
        WEIGHTS: (tmp_path / "org--surrogate" / WEIGHTS).read_bytes(),
    })  # fmt: skip
    started: DownloadView = lmx.ask(StartDownload(name))
    done = wait_status(lmx, started.download_id, DownloadStatus.COMPLETED)
    assert done.model_id is None
    assert "downloaded, but not served: " in (done.error or "")
    assert "model_type is no name" in (done.error or "")
    added = lmx.home / "state" / "models.json"
    assert not added.exists() or name not in added.read_text()
    assert name in available(lmx)
    assert lmx.cli("status").returncode == 0
