"""The fetch process as the supervisor sees it: what it says, and that it says anything at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.processes.fetching import Fetching, FetchProgram

MODEL = ModelConfig(id="m", source="owner/name")


async def outcome_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, script: str
) -> tuple[str, Path | LmxError]:
    """What comes of a fetch whose program is a shell script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    ended: asyncio.Future[tuple[str, Path | LmxError]] = asyncio.get_running_loop().create_future()
    fetching = Fetching(
        FetchProgram(folder, folder / "fetch.log"),
        lambda *_: None,
        lambda *found: ended.set_result(found),
    )
    fetching.start(MODEL)
    try:
        return await asyncio.wait_for(ended, 20)
    finally:
        await fetching.close()


async def test_the_folder_is_what_it_says_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """echo '{"phase": "download", "fraction": 0.5}'; echo '{"path": "/models/m"}'"""
    assert await outcome_of(monkeypatch, tmp_path, script) == ("m", Path("/models/m"))


async def test_an_end_without_a_word_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, error = await outcome_of(monkeypatch, tmp_path, "exit 3")
    assert isinstance(error, LmxError)
    assert "status 3" in error.message


async def test_one_that_says_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lmx.supervisor.processes.fetching._STALL_S", 0.2)
    pid_file = tmp_path / "pid"
    _, error = await outcome_of(monkeypatch, tmp_path, f"echo $$ > {pid_file}; exec sleep 600")
    assert isinstance(error, LmxError)
    assert error.code is ErrorCode.DOWNLOAD_FAILED
    assert "no progress" in error.message
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
