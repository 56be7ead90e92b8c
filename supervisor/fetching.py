"""Runs the fetch process of a model: a hub download or a GGUF import, outside this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import LoadPhase
from lmx.supervisor.config import ModelConfig

log = structlog.get_logger()
_TERM_GRACE_S: Final = 10.0
_STALL_S: Final = 900.0
"""Without a word for so long a fetch is ended. Comparing the converted weights of a large model
with their file takes minutes and says nothing meanwhile."""

_LINE_LIMIT_BYTES: Final = 256 * 1024
_LOG_LIMIT_BYTES: Final = 1024 * 1024


class Fetching:
    """The fetches that run, by model id. ``on_advance(model_id, phase, fraction)`` and
    ``on_end(model_id, path or error)`` are called on the event loop."""

    def __init__(
        self,
        models: Path,
        log_path: Path,
        on_advance: Callable[[str, LoadPhase, float | None], None],
        on_end: Callable[[str, Path | LmxError], None],
    ) -> None:
        self._models = models
        self._log_path = log_path
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
        # Only the last fetches are of interest; one of them says little.
        large = self._log_path.exists() and self._log_path.stat().st_size > _LOG_LIMIT_BYTES
        with self._log_path.open("wb" if large else "ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "lmx.supervisor.fetch_main",
                "--source", model.source, "--models-dir", str(self._models),
                "--parent", str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
                start_new_session=True, limit=_LINE_LIMIT_BYTES,
            )  # fmt: skip
        outcome: Path | LmxError | None = None
        try:
            outcome = await self._read(model.id, process)
            async with asyncio.timeout(_TERM_GRACE_S):
                await process.wait()
        except TimeoutError:
            outcome = outcome or self._stalled(model)
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), _TERM_GRACE_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
        self._on_end(model.id, outcome or self._unsaid(model, process.returncode))

    async def _read(
        self, model_id: str, process: asyncio.subprocess.Process
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
                log.warning("fetch.bad_line", model=model_id, line=line[:200])
                continue
            if "path" in report:
                outcome = Path(report["path"])
            elif "error" in report:
                error = report["error"]
                outcome = UnavailableError(ErrorCode(error["code"]), error["message"])
            else:
                self._on_advance(model_id, LoadPhase(report["phase"]), report.get("fraction"))

    def _stalled(self, model: ModelConfig) -> LmxError:
        return UnavailableError(
            ErrorCode.DOWNLOAD_FAILED,
            f"fetching {model.source} made no progress for {_STALL_S:g} s: see {self._log_path}",
        )

    def _unsaid(self, model: ModelConfig, status: int | None) -> LmxError:
        return UnavailableError(
            ErrorCode.DOWNLOAD_FAILED,
            f"fetching {model.source} ended with status {status} and no word: see {self._log_path}",
        )
