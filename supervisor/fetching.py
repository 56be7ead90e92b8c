"""Runs the fetch process of a model that is to be loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import LoadPhase
from lmx.supervisor.config import ModelConfig
from lmx.supervisor.fetch_process import FetchProgram

log = structlog.get_logger()


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
