"""The fetch process as the supervisor sees it: what it says, and that it says anything at all."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.processes.fetching import Fetch, FetchProgram, FetchRuns, LoadFetches
from tests.support.fakes.fake_peers import until

MODEL = ModelConfig(id="m", source="owner/name")
Found = tuple[str, Path | LmxError | OSError, dict[str, str]]


async def outcome_of(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    script: str,
    model: ModelConfig = MODEL,
    advanced: Callable[..., None] = lambda *_: None,
) -> Found:
    """What comes of a fetch whose program is a shell script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def take_end(*found: Any) -> None:
        ended.set_result(found)

    fetching = FetchProgram(folder, folder / "fetch.log")
    runs = FetchRuns(fetching)
    LoadFetches(fetching, runs, advanced, take_end).start(model)
    try:
        found: Found = await asyncio.wait_for(ended, 90)
        return found
    finally:
        await runs.close()


async def test_the_folder_is_what_it_says_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """echo '{"phase": "download", "fraction": 0.5}'; echo '{"path": "/models/m"}'"""
    assert await outcome_of(monkeypatch, tmp_path, script) == ("m", Path("/models/m"), {})


async def test_adapters_come_after_their_model_and_each_may_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = {"a": "org/good", "b": "org/bad", "c": "/a/folder", "d": "org/good"}
    model = ModelConfig(id="m", source="owner/name", adapters=sources)
    bad = '{"error": {"code": "download_failed", "message": "no such repository"}}'
    script = f"""echo "$5 ${{10}}" >> {tmp_path}/asked
case "$5" in org/bad) echo '{bad}';; *) echo '{{"path": "/models/m"}}';; esac"""
    outcome = await outcome_of(monkeypatch, tmp_path, script, model)
    assert outcome == ("m", Path("/models/m"), {"org/bad": "no such repository"})
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["owner/name ", "org/good --adapter", "org/bad --adapter"]


async def test_an_end_without_a_word_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, error, _ = await outcome_of(monkeypatch, tmp_path, "exit 3")
    assert isinstance(error, LmxError)
    assert "status 3" in error.message


async def test_a_machine_without_a_process_for_it_is_no_failure_of_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def none_left(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
    _, error, _ = await outcome_of(monkeypatch, tmp_path, "exit 0")
    assert isinstance(error, BlockingIOError)


async def test_one_that_says_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stall_s = "lmx.supervisor.processes.fetching._STALL_S"
    pid_file = tmp_path / "pid"
    script = f"""echo $$ > {pid_file}; echo '{{"phase": "download"}}'; exec sleep 600"""
    _, error, _ = await outcome_of(
        monkeypatch, tmp_path, script, advanced=lambda *_: monkeypatch.setattr(stall_s, 0.2)
    )
    assert isinstance(error, LmxError)
    assert error.code is ErrorCode.DOWNLOAD_FAILED
    assert "no progress" in error.message
    assert not psutil.pid_exists(int(pid_file.read_text()))


# Runs of one key.


class Runs:
    """Runs whose program is a shell script, and what they told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.chdir(folder)
        self._program = folder / "program"
        monkeypatch.setattr("sys.executable", str(self._program))
        self.runs = FetchRuns(FetchProgram(folder, folder / "fetch.log"))
        self.reported: list[Any] = []
        self.progress = asyncio.Event()
        self.error: Exception | None = None

    def start(self, script: str, key: str = "k") -> None:
        self._program.write_text(f"#!/bin/sh\n{script}\n")
        self._program.chmod(0o755)
        self.progress.clear()
        fetch = Fetch("owner/name", (), lambda _: self.progress.set(), self._ended, self._broke)
        self.runs.start(key, fetch)

    async def _ended(self, outcome: Path | LmxError) -> None:
        if self.error is not None:
            raise self.error
        self.reported.append(outcome)

    async def _broke(self, error: Exception) -> None:
        self.reported.append(error)

    async def until_reported(self) -> Any:
        return (await until(lambda: self.reported))[-1]

    def pid(self) -> int:
        return int((self.folder / "pid").read_text())


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


SLOW_TO_GO = """trap 'sleep 0.5; exit 0' TERM
echo $$ > pid; echo '{"phase": "download"}'; while :; do sleep 0.05; done"""


async def test_a_run_waits_until_the_one_before_it_is_gone(runs: Runs) -> None:
    runs.start(SLOW_TO_GO)
    await asyncio.wait_for(runs.progress.wait(), 90)
    first = runs.pid()
    runs.runs.stop("k")
    runs.start(f"""kill -0 {first} && exit 9; echo '{{"path": "/second"}}'""")
    assert await runs.until_reported() == Path("/second")
    assert not psutil.pid_exists(first)


async def test_one_that_is_stopped_again_is_still_seen_out(runs: Runs) -> None:
    runs.start(SLOW_TO_GO)
    await asyncio.wait_for(runs.progress.wait(), 90)
    first = runs.pid()
    runs.runs.stop("k")
    await asyncio.sleep(0.05)
    runs.runs.stop("k")
    await runs.runs.close()
    assert not psutil.pid_exists(first)
    assert runs.reported == []


async def test_what_goes_wrong_here_is_reported_too(runs: Runs) -> None:
    runs.error = ZeroDivisionError("bug")
    runs.start("""echo '{"path": "/models/m"}'""")
    assert await runs.until_reported() is runs.error


async def test_runs_of_different_keys_do_not_wait_for_each_other(runs: Runs) -> None:
    runs.start("""echo '{"phase": "download"}'; exec sleep 60""", "one")
    await asyncio.wait_for(runs.progress.wait(), 90)
    runs.start("""echo '{"path": "/two"}'""", "two")
    assert await runs.until_reported() == Path("/two")
    await runs.runs.close()
