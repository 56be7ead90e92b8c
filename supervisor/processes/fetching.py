"""Runs the fetch process of a model that is to be loaded.

One run of the fetch program: a hub download or a GGUF import, outside this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import LoadPhase
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.state.home import Home

log = structlog.get_logger()
TERM_GRACE_S: Final = 10.0
_STALL_S: Final = 900.0
"""Without a word for so long a fetch is ended. Comparing the converted weights of a large model
with their file takes minutes and says nothing meanwhile."""

_LINE_LIMIT_BYTES: Final = 256 * 1024
_LOG_LIMIT_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchProgram:
    """Where the program puts what it makes, and what its libraries print."""

    models: Path
    log_path: Path

    @classmethod
    def of(cls, home: Home) -> FetchProgram:
        """Return the program of a home."""
        return cls(home.models, home.logs / "fetch.log")

    async def run(
        self,
        source: str,
        options: Sequence[str],
        advanced: Callable[[dict[str, Any]], None],
    ) -> Path | LmxError:
        """Run it to its end; returns what it made, or why there is nothing. ``advanced`` gets
        each line of progress. Cancelled, it ends the process and waits for its exit.
        """
        # Only the last fetches are of interest; one of them says little.
        large = self.log_path.exists() and self.log_path.stat().st_size > _LOG_LIMIT_BYTES
        with self.log_path.open("wb" if large else "ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "lmx.supervisor.fetch.main",
                "--source", source, "--models-dir", str(self.models),
                "--parent", str(os.getpid()), *options,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
                start_new_session=True, limit=_LINE_LIMIT_BYTES,
            )  # fmt: skip
        outcome: Path | LmxError | None = None
        try:
            outcome = await _read(source, process, advanced)
            async with asyncio.timeout(TERM_GRACE_S):
                await process.wait()
        except TimeoutError:
            outcome = outcome or self._stalled(source)
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), TERM_GRACE_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
        return outcome or self._unsaid(source, process.returncode)

    def _stalled(self, source: str) -> LmxError:
        return UnavailableError(
            ErrorCode.DOWNLOAD_FAILED,
            f"fetching {source} made no progress for {_STALL_S:g} s: see {self.log_path}",
        )

    def _unsaid(self, source: str, status: int | None) -> LmxError:
        return UnavailableError(
            ErrorCode.DOWNLOAD_FAILED,
            f"fetching {source} ended with status {status} and no word: see {self.log_path}",
        )


async def _read(
    source: str, process: asyncio.subprocess.Process, advanced: Callable[[dict[str, Any]], None]
) -> Path | LmxError | None:
    """Return the outcome, None if there was none; raises ``TimeoutError`` on a stall."""
    assert process.stdout is not None
    outcome: Path | LmxError | None = None
    while True:
        async with asyncio.timeout(_STALL_S):
            line = await process.stdout.readline()
        if not line:
            return outcome
        try:
            report: dict[str, Any] = json.loads(line)
        except ValueError:
            log.warning("fetch.bad_line", source=source, line=line[:200])
            continue
        if "path" in report:
            outcome = Path(report["path"])
        elif "error" in report:
            error = report["error"]
            outcome = UnavailableError(
                ErrorCode(error["code"]),
                error["message"],
                param=error.get("param"),
                retry_after_s=error.get("retry_after_s"),
            )
        else:
            advanced(report)


class Fetching:
    """The fetches that run, by model id. ``on_advance(model_id, phase, fraction)`` and
    ``on_end(model_id, path or error)`` are called on the event loop."""

    def __init__(
        self,
        program: FetchProgram,
        on_advance: Callable[[str, LoadPhase, float | None], None],
        on_end: Callable[[str, Path | LmxError], None],
    ) -> None:
        self._program = program
        self._on_advance = on_advance
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Also those that were cancelled and still see their process out.
        self._alive: set[asyncio.Task[None]] = set()

    def start(self, model: ModelConfig) -> None:
        """Begin to fetch; one at a time for a model."""
        task = asyncio.get_running_loop().create_task(self._run(model))
        self._tasks[model.id] = task
        self._alive.add(task)
        task.add_done_callback(lambda done: self._finished(model.id, done))

    def stop(self, model_id: str) -> None:
        """End a fetch; neither callback follows."""
        task = self._tasks.pop(model_id, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End all fetches and wait until their processes are gone."""
        for model_id in list(self._tasks):
            self.stop(model_id)
        await asyncio.gather(*self._alive, return_exceptions=True)

    def _finished(self, model_id: str, task: asyncio.Task[None]) -> None:
        self._alive.discard(task)
        wanted = self._tasks.get(model_id) is task
        if wanted:
            del self._tasks[model_id]
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("fetch.failed", model=model_id, exc_info=error)
        if wanted:
            self._on_end(
                model_id, UnavailableError(ErrorCode.DOWNLOAD_FAILED, f"the fetch broke: {error}")
            )

    async def _run(self, model: ModelConfig) -> None:
        def advanced(report: dict[str, Any]) -> None:
            self._on_advance(model.id, LoadPhase(report["phase"]), report.get("fraction"))

        outcome = await self._program.run(model.source, (), advanced)
        if isinstance(outcome, LmxError):
            # The field is one of a download; who loads a model has given none of them.
            outcome = UnavailableError(
                outcome.code, outcome.message, retry_after_s=outcome.retry_after_s
            )
        self._on_end(model.id, outcome)
