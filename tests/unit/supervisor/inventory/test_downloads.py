"""Downloads as the supervisor keeps them: their speed, their records, their life. What is run is
a shell script; the real program is tests/process/models/test_fetch_hub.py's."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, RequestError
from lmx.protocol.host.processor_wait import ProcessorWait
from lmx.protocol.messages.inventory import AddModel, DownloadView, StartDownload
from lmx.protocol.states import DownloadStatus, QuantizedBits
from lmx.supervisor.inventory.download_records import (
    KEPT,
    Download,
    DownloadFile,
    new_download_id,
    requested_download,
    trimmed,
)
from lmx.supervisor.inventory.downloads import (
    AT_ONCE,
    MOST_UNFINISHED,
    WINDOW_S,
    Downloads,
    bytes_per_s,
    note_bytes,
)
from lmx.supervisor.processes.fetching import FetchProgram, FetchRuns
from tests.support.fakes.fake_peers import until


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(0, 10**9)), min_size=1, max_size=60))
def test_the_speed_is_that_of_the_window(steps: list[tuple[float, int]]) -> None:
    samples: deque[tuple[float, int]] = deque()
    now_s, done_bytes = 100.0, 0
    for took_s, came_bytes in steps:
        now_s, done_bytes = now_s + took_s, done_bytes + came_bytes
        note_bytes(samples, now_s, done_bytes)
        speed = bytes_per_s(samples, now_s)
        assert 0 <= speed <= 10**9 / 0.01 * 1.01
    assert sum(1 for at_s, _ in samples if at_s <= now_s - WINDOW_S) <= 1
    assert bytes_per_s(samples, now_s + WINDOW_S + 0.1) == 0


def test_an_even_stream_has_its_speed() -> None:
    samples: deque[tuple[float, int]] = deque()
    assert bytes_per_s(samples, 0.0) == 0
    for tick in range(100):
        note_bytes(samples, tick * 0.25, tick * 1000)
    assert bytes_per_s(samples, 99 * 0.25) == pytest.approx(4000)
    assert bytes_per_s(samples, 99 * 0.25 + 2.0) < 4000
    note_bytes(samples, 25.0, 0)
    note_bytes(samples, 26.0, 500)
    assert bytes_per_s(samples, 26.0) == pytest.approx(500)


def record(status: DownloadStatus = DownloadStatus.COMPLETED, **values: Any) -> Download:
    made = Download(new_download_id(), "org/name", None, None, 1.0, status)
    return replace(made, **values)


def test_records_outlive_the_supervisor(tmp_path: Path) -> None:
    file = DownloadFile(tmp_path / "downloads.json")
    assert file.load() == []
    failed = record(
        DownloadStatus.FAILED, error_code=ErrorCode.DOWNLOAD_FAILED, error="cut", ended_s=2.0
    )
    running = record(DownloadStatus.DOWNLOADING, total_bytes=10, downloaded_bytes=5)
    file.save(file.values_of([failed, running]))
    found = file.load()
    assert found[0] == failed
    written_s = (tmp_path / "downloads.json").stat().st_mtime
    assert (found[1].status, found[1].ended_s) == (DownloadStatus.INTERRUPTED, written_s)
    assert (found[1].downloaded_bytes, found[1].total_bytes) == (5, 10)
    assert "was killed" in (found[1].error or "")
    assert "resumes" in (found[1].error or "")
    assert found[1].error_code is ErrorCode.DOWNLOAD_FAILED
    for text in ("no JSON", "[1]", '[{"status": "odd"}]', "{}"):
        (tmp_path / "downloads.json").write_text(text)
        assert file.load() == []


@given(st.lists(st.sampled_from(DownloadStatus), max_size=KEPT + 40))
def test_the_latest_are_kept_and_all_that_runs(statuses: list[DownloadStatus]) -> None:
    made = [record(status) for status in statuses]
    kept = trimmed(made)
    assert [each for each in made if each in kept] == kept
    assert [each for each in made if each.unfinished] == [each for each in kept if each.unfinished]
    surplus = max(0, len(made) - KEPT)
    assert len(made) - len(kept) == min(surplus, sum(not each.unfinished for each in made))


class Ground:
    """Downloads whose program is a shell script, and what they told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._program = folder / "program"
        monkeypatch.setattr("sys.executable", str(self._program))
        self.script("sleep 60")
        self.events: list[str] = []
        self.looked: Callable[[], None] = lambda: None
        self.served: Callable[[Download, Path], str | None] = lambda download, _: download.repo_id
        self.serving: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        self.made: list[Downloads] = []

    def script(self, text: str) -> None:
        self._program.write_text(f"#!/bin/sh\n{text}\n")
        self._program.chmod(0o755)

    def gguf(self) -> Path:
        """Have the program bring a GGUF file, and return it."""
        file = self.folder / "m.gguf"
        file.touch()
        self.script(f"""{SIZED}; echo '{{"path": "{file}"}}'""")
        return file

    async def _serve(self, download: Download, path: Path) -> str | None:
        await self.serving()
        return self.served(download, path)

    async def _is_whole(self, file: Path) -> bool:
        self.looked()
        return file.exists()

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self.events.append(name)

    def downloads(self) -> Downloads:
        made = Downloads(
            DownloadFile(self.folder / "downloads.json"),
            FetchRuns(FetchProgram(self.folder, self.folder / "fetch.log")),
            self._serve,
            self._is_whole,
            self,
        )
        self.made.append(made)
        return made


@pytest.fixture
async def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    made = Ground(tmp_path, monkeypatch)
    yield made
    for downloads in made.made:
        await downloads.close(resume=False)


SIZED = """echo '{"phase": "download", "fraction": 0.5, "done_bytes": 5, "total_bytes": 10}'"""
REFUSED = """echo '{"error": {"code": "download_failed", "message": "too many", \
"param": "repo_id", "retry_after_s": 900}}'; exit 1"""
FAILS = """echo '{"error": {"code": "download_failed", "message": "cut off"}}'; exit 1"""


async def ended(downloads: Downloads, view: DownloadView) -> DownloadView:
    def found() -> list[DownloadView]:
        listed = downloads.list(view.download_id).downloads
        return [each for each in listed if each.ended_s is not None]

    return (await until(found))[0]


MEASURED = """echo '{"phase": "check", "fraction": 1.0, "detail": "a little worse", \
"done_bytes": 10, "total_bytes": 10}'"""


async def test_one_that_is_quantized_is_one_of_its_own(ground: Ground) -> None:
    made = ground.folder / "made"
    made.mkdir()
    ground.script(f"""{SIZED}; {MEASURED}; echo '{{"path": "{made}"}}'""")
    asked: list[AddModel | None] = []

    def serve(download: Download, path: Path) -> str | None:
        asked.append(download.to_serve(path))
        return None

    ground.served = serve
    downloads = ground.downloads()
    view = await downloads.start(StartDownload("org/name", bits=QuantizedBits.FOUR))
    view = await ended(downloads, view)
    assert (view.bits, view.note) == (QuantizedBits.FOUR, "a little worse")
    assert asked == [AddModel("name-4bit", str(made))]
    other = await ended(downloads, await downloads.start(StartDownload("org/name")))
    assert (other.bits, other.note) == (None, None)
    assert other.download_id != view.download_id
    own = await downloads.start(StartDownload(str(made), bits=QuantizedBits.MIXED))
    assert own.repo_id == str(made)
    await ended(downloads, own)
    await downloads.close(resume=False)
    kept = {each.download_id: each for each in ground.downloads().list().downloads}
    assert kept[view.download_id] == view


@pytest.mark.parametrize(
    ("question", "param"),
    [
        (StartDownload("/a/folder"), "repo_id"),
        (StartDownload("/", bits=QuantizedBits.FOUR), "repo_id"),
        (StartDownload("/a/folder", "v1", bits=QuantizedBits.FOUR), "repo_id"),
        (StartDownload("/a/m.gguf", None, "b.gguf", QuantizedBits.FOUR), "repo_id"),
        (StartDownload("org/name", "..", bits=QuantizedBits.FOUR), "revision"),
    ],
)
def test_what_is_no_download(question: StartDownload, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        requested_download(question)
    assert refused.value.param == param


async def test_one_of_a_kind_runs(ground: Ground) -> None:
    ground.script(f"{SIZED}; exec sleep 60")
    downloads = ground.downloads()
    view = await downloads.start(StartDownload("org/name"))
    assert (view.status, view.total_bytes) == (DownloadStatus.DOWNLOADING, 10)
    again = await downloads.start(StartDownload("org/name", "main"))
    assert again.download_id == view.download_id
    other = await downloads.start(StartDownload("org/name", "v2"))
    assert other.download_id != view.download_id
    assert [each.download_id for each in downloads.list().downloads] == [
        other.download_id,
        view.download_id,
    ]
    cancelled = await downloads.cancel(view.download_id)
    assert cancelled.status is DownloadStatus.CANCELLED
    assert (await downloads.cancel(view.download_id)).status is DownloadStatus.CANCELLED
    ground.script(FAILS)
    failed = await downloads.start(StartDownload("org/name"))
    assert (failed.download_id, failed.status) == (view.download_id, DownloadStatus.FAILED)
    assert (failed.error_code, failed.error) == (ErrorCode.DOWNLOAD_FAILED, "cut off")
    await downloads.close(resume=False)
    assert downloads.list(other.download_id).downloads[0].status is DownloadStatus.INTERRUPTED
    assert ground.events.count("download.started") == 3
    assert ground.events[-1] == "download.interrupted"


@pytest.mark.parametrize("whole", [False, True])
async def test_files_that_are_being_deleted_are_not_downloaded(ground: Ground, whole: bool) -> None:
    """Neither where the deletion begins while the files of a complete download are looked at."""
    downloads = ground.downloads()
    with downloads.deleting("org/name"):
        with downloads.deleting("org/name"):
            pass  # one of two deletions is over
        with pytest.raises(LmxError, match="being deleted") as caught:
            await downloads.start(StartDownload("org/name"))
        assert caught.value.code is ErrorCode.MODEL_UNLOADED
    file = ground.folder / "m.gguf"
    if whole:
        file.touch()
    ground.script(f"""echo '{{"path": "{file}"}}'""")
    question = StartDownload("org/name", None, "m.gguf")
    await ended(downloads, await downloads.start(question))
    with ExitStack() as deleting:
        ground.looked = lambda: deleting.enter_context(downloads.deleting("org/name"))
        with pytest.raises(LmxError, match="being deleted"):
            await downloads.start(question)
    ground.looked = lambda: None
    view = await downloads.start(question)
    assert view.status is DownloadStatus.COMPLETED


async def test_a_repository_that_has_come_is_asked_for_again(ground: Ground) -> None:
    downloads = ground.downloads()
    views = []
    for commit in ("old", "new"):
        ground.script(f"""{SIZED}; echo '{{"path": "/snapshots/{commit}"}}'""")
        views.append(await ended(downloads, await downloads.start(StartDownload("org/name"))))
        assert downloads.of("org/name")[0].path == f"/snapshots/{commit}"
    old, new = views
    assert (old.status, old.model_id) == (DownloadStatus.COMPLETED, "org/name")
    assert old.downloaded_bytes == old.total_bytes
    assert (new.download_id, new.status) == (old.download_id, DownloadStatus.COMPLETED)
    assert len(downloads.list().downloads) == 1


async def test_a_gguf_file_that_has_come_is_not_asked_for_again(ground: Ground) -> None:
    """Its model is served by its path, which has the commit."""
    file = ground.gguf()
    downloads = ground.downloads()
    question = StartDownload("org/name", None, "m.gguf")
    done = await ended(downloads, await downloads.start(question))
    ground.script(FAILS)
    assert await downloads.start(question) == done
    ground.served = lambda *_: "elsewhere"  # the model was removed, and its name given away
    assert (await downloads.start(question)).model_id == "elsewhere"
    file.unlink()
    assert (await ended(downloads, await downloads.start(question))).error == "cut off"


async def test_a_taken_name_fails_no_download(ground: Ground) -> None:
    def taken(_download: Download, _path: Path) -> str:
        raise OperationError(ErrorCode.MODEL_EXISTS, "the name is taken")

    ground.served = taken
    ground.script("""echo '{"path": "/nowhere"}'""")
    downloads = ground.downloads()
    done = await ended(downloads, await downloads.start(StartDownload("org/name")))
    assert (done.status, done.model_id) == (DownloadStatus.COMPLETED, None)
    assert "the name is taken" in str(done.error)


async def test_the_size_is_waited_for_while_the_look_waits_for_a_processor(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.supervisor.inventory.downloads._SIZE_S", 0.01)
    ground.script("exec sleep 60")
    downloads = ground.downloads()
    early = await downloads.start(StartDownload("org/early"))
    assert (early.status, early.total_bytes) == (DownloadStatus.STARTING, None)
    ground.script(f"sleep 0.3; {SIZED}; exec sleep 60")
    monkeypatch.setattr(ProcessorWait, "more_s", lambda _: 90.0)
    reported = await downloads.start(StartDownload("org/told"))
    assert (reported.status, reported.total_bytes) == (DownloadStatus.DOWNLOADING, 10)


async def test_some_run_and_the_others_wait(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.supervisor.inventory.downloads._SIZE_S", 0.01)
    ground.script(f"{SIZED}; exec sleep 60")
    downloads = ground.downloads()
    for number in range(MOST_UNFINISHED):
        await downloads.start(StartDownload(f"org/m{number}"))
    with pytest.raises(LmxError) as refused:
        await downloads.start(StartDownload("org/more"))
    assert refused.value.code is ErrorCode.QUEUE_FULL

    def running() -> int:
        statuses = [each.status for each in downloads.list().downloads]
        return statuses.count(DownloadStatus.DOWNLOADING)

    await until(lambda: running() >= AT_ONCE)
    first = downloads.list().downloads[-1]
    await downloads.cancel(first.download_id)
    await until(lambda: running() >= AT_ONCE)
    assert running() == AT_ONCE


async def test_the_next_program_continues(ground: Ground) -> None:
    ground.script(f"{SIZED}; exec sleep 60")
    first = ground.downloads()
    left = await first.start(StartDownload("org/name"))
    cancelled = await first.start(StartDownload("org/other"))
    await first.cancel(cancelled.download_id)
    given_up = await first.start(StartDownload("org/given-up"))
    closing = asyncio.create_task(first.close(resume=True))
    while not closing.done():
        # Whoever waits for its end sees none: not here, and not in the next program.
        assert first.list(left.download_id).downloads[0].status is DownloadStatus.DOWNLOADING
        await asyncio.sleep(0)
        if first.list(given_up.download_id).downloads[0].status is not DownloadStatus.CANCELLED:
            await first.cancel(given_up.download_id)
    await closing
    assert "download.interrupted" not in ground.events

    second = ground.downloads()
    view = second.list(left.download_id).downloads[0]
    assert (view.status, view.ended_s, view.error) == (DownloadStatus.STARTING, None, None)
    view = second.list(given_up.download_id).downloads[0]
    assert view.status is DownloadStatus.CANCELLED
    second.resume()
    statuses = {each.repo_id: each.status for each in second.list().downloads}
    assert statuses == {
        "org/name": DownloadStatus.STARTING,
        "org/other": DownloadStatus.CANCELLED,
        "org/given-up": DownloadStatus.CANCELLED,
    }
    assert (await second.start(StartDownload("org/name"))).download_id == left.download_id
    await second.close(resume=False)

    third = ground.downloads()
    third.resume()
    view = third.list(left.download_id).downloads[0]
    assert view.status is DownloadStatus.INTERRUPTED
    assert (view.error_code, "resumes" in (view.error or "")) == (ErrorCode.DOWNLOAD_FAILED, True)
    view = await third.cancel(left.download_id)
    assert (view.status, view.error_code) == (DownloadStatus.CANCELLED, None)


@pytest.mark.parametrize(
    ("question", "param"),
    [
        (StartDownload("name"), "repo_id"),
        (StartDownload("/etc/passwd"), "repo_id"),
        (StartDownload("org/name@v1"), "repo_id"),
        (StartDownload("org/name.gguf"), "repo_id"),
        (StartDownload("org/name", "../up"), "revision"),
        (StartDownload("org/name", "x.gguf"), "revision"),
        (StartDownload("org/name", ""), "revision"),
        (StartDownload("org/name", None, "../up.gguf"), "filename"),
        (StartDownload("org/name", None, ""), "filename"),
        (StartDownload("org/name", None, "a\nb"), "filename"),
    ],
)
async def test_questions_that_are_wrong(
    ground: Ground, question: StartDownload, param: str
) -> None:
    downloads = ground.downloads()
    with pytest.raises(LmxError) as refused:
        await downloads.start(question)
    assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, param)
    with pytest.raises(LmxError) as unknown:
        await downloads.cancel("dl_000000000000")
    assert unknown.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("revision", "filename", "model_id", "source"),
    [
        (None, None, "org/name", "org/name"),
        ("main", None, "org/name", "org/name"),
        ("v2", None, "org/name", "org/name@v2"),
        (None, "Some-1B-Q4_0.gguf", "some-1b", "/cache/file"),
        (None, "千问.gguf", "org/name", "/cache/file"),
        (None, "notes.txt", None, None),
    ],
)
def test_under_what_a_download_is_served(
    revision: str | None, filename: str | None, model_id: str | None, source: str | None
) -> None:
    done = record(revision=revision, filename=filename)
    expected = AddModel(model_id, source) if model_id and source else None
    assert done.to_serve(Path("/cache/file")) == expected


async def test_a_failure_shows_its_field_and_when_to_come_back(ground: Ground) -> None:
    downloads = ground.downloads()
    ground.script(REFUSED)
    view = await ended(downloads, await downloads.start(StartDownload("org/name")))
    assert (view.param, view.retry_after_s) == ("repo_id", 900)
    ground.script(FAILS)
    view = await ended(downloads, await downloads.start(StartDownload("org/name")))
    assert (view.error, view.param, view.retry_after_s) == ("cut off", None, None)


async def test_a_load_that_fetched_all_of_it_completes_a_download_that_failed(
    ground: Ground,
) -> None:
    downloads = ground.downloads()
    ground.script(FAILS)
    failed = await ended(downloads, await downloads.start(StartDownload("org/name")))
    await downloads.completed_elsewhere("org/name", "v2", Path("/cache/other"))
    await downloads.completed_elsewhere("org/other", None, Path("/cache/other"))
    assert (await ended(downloads, failed)).status is DownloadStatus.FAILED
    await downloads.completed_elsewhere("org/name", None, Path("/cache/name"))
    done = await ended(downloads, failed)
    assert (done.status, done.model_id) == (DownloadStatus.COMPLETED, "org/name")
    assert (done.error, done.error_code) == (None, None)


async def test_whoever_looks_while_it_is_served_sees_no_half_of_an_end(ground: Ground) -> None:
    ground.gguf()
    downloads = ground.downloads()
    question = StartDownload("org/name", None, "m.gguf")
    done = await ended(downloads, await downloads.start(question))
    seen: list[DownloadView] = []

    async def look() -> None:
        seen.append(downloads.list().downloads[0])

    ground.serving = look
    assert await downloads.start(question) == done
    ground.script(FAILS)
    failed = await ended(downloads, await downloads.start(StartDownload("org/name")))
    await downloads.completed_elsewhere("org/name", None, Path("/cache/name"))
    assert [(each.status, each.model_id, each.error) for each in seen] == [
        (DownloadStatus.COMPLETED, "org/name", None),
        (DownloadStatus.FAILED, None, "cut off"),
    ]
    assert (await ended(downloads, failed)).status is DownloadStatus.COMPLETED


async def test_one_that_was_begun_again_has_its_own_end(ground: Ground) -> None:
    """Also if a load has fetched all of it just then."""
    downloads = ground.downloads()
    ground.script(FAILS)
    failed = await ended(downloads, await downloads.start(StartDownload("org/name")))
    ground.script(f"{SIZED}; exec sleep 60")
    ground.serving = lambda: downloads.start(StartDownload("org/name"))
    await downloads.completed_elsewhere("org/name", None, Path("/cache/name"))
    assert downloads.list(failed.download_id).downloads[0].status is DownloadStatus.DOWNLOADING


async def test_a_cancelled_one_may_write_until_its_process_is_gone(ground: Ground) -> None:
    ready, gone = ground.folder / "ready", ground.folder / "gone"
    ground.script(
        f"trap 'sleep 0.2; touch {gone}; exit' TERM; touch {ready}; {SIZED}; "
        "while true; do sleep 0.01; done"
    )
    downloads = ground.downloads()
    view = await downloads.start(StartDownload("org/name"))
    assert ready.exists()
    cancelling = asyncio.create_task(downloads.cancel(view.download_id))
    while downloads.list(view.download_id).downloads[0].status is not DownloadStatus.CANCELLED:
        await asyncio.sleep(0)
    await downloads.wait_stopped()
    assert gone.exists()
    await cancelling
