"""Runs the fetch program, which downloads from a hub or imports a GGUF file, in processes of its
own: for loads, and for the downloads of :mod:`lmx.supervisor.inventory.downloads`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.host.lasting import begin
from lmx.protocol.states import LoadPhase
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.secret_variables import without_own_keys
from lmx.supervisor.config.shutdown_timeout import FETCH_GRACE_S
from lmx.supervisor.processes.child import open_log
from lmx.supervisor.state.home import Home

log = structlog.get_logger()
_STALL_S: Final = 900.0
"""A fetch that reports nothing for this long is ended. To compare the converted weights of a large
model with their file takes minutes, and nothing is reported meanwhile."""

_LINE_LIMIT_BYTES: Final = 256 * 1024
_LOG_LIMIT_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchProgram:
    """The fetch program: where it puts what it makes, and where the output of its libraries
    goes."""

    models: Path
    log_path: Path

    @classmethod
    def of(cls, home: Home) -> FetchProgram:
        """Return the program of a home."""
        return cls(home.models, home.fetch_log)

    async def run(
        self, source: str, options: Sequence[str], advanced: Callable[[dict[str, Any]], None]
    ) -> Path | LmxError:
        """Run the program to its end. Returns the path that it made, or the error. ``advanced`` is
        called with each line of progress. When this is cancelled, it ends the process and waits for
        its exit, unless not even SIGKILL ends it.
        """
        # Only the last fetches are of interest, and one fetch prints little.
        errors = open_log(self.log_path)
        try:
            with contextlib.suppress(OSError):
                if os.fstat(errors).st_size > _LOG_LIMIT_BYTES:
                    os.ftruncate(errors, 0)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "lmx.supervisor.fetch.main",
                "--source", source, "--models-dir", str(self.models),
                "--parent", str(os.getpid()), *options,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
                start_new_session=True, limit=_LINE_LIMIT_BYTES, env=without_own_keys(os.environ),
            )  # fmt: skip
        finally:
            os.close(errors)
        outcome: Path | LmxError | None = None
        try:
            outcome = await _read(source, process, advanced)
            async with asyncio.timeout(FETCH_GRACE_S):
                await process.wait()
        except TimeoutError:
            outcome = outcome or self._stalled(source)
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), FETCH_GRACE_S)
                except TimeoutError:
                    process.kill()
                    # A disk that is gone can keep it: then it is left to itself.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), FETCH_GRACE_S)
        return outcome or self._no_outcome(source, process.returncode)

    def _stalled(self, source: str) -> LmxError:
        return UnavailableError(
            ErrorCode.DOWNLOAD_FAILED,
            f"fetching {source} made no progress for {_STALL_S:g} s: see {self.log_path}",
        )

    def _no_outcome(self, source: str, status: int | None) -> LmxError:
        return UnavailableError(
            ErrorCode.DOWNLOAD_FAILED,
            f"fetching {source} ended with status {status} and no word: see {self.log_path}",
        )


async def _read(
    source: str, process: asyncio.subprocess.Process, advanced: Callable[[dict[str, Any]], None]
) -> Path | LmxError | None:
    """Return the outcome, or None. Raises ``TimeoutError`` on a stall."""
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


@dataclass(frozen=True, slots=True)
class Fetch:
    """One run of the fetch program, and the functions that it calls. A run that was stopped calls
    none of them any more."""

    source: str
    """What is fetched, as the configuration writes it."""
    options: tuple[str, ...]
    """Further arguments of the program."""
    advanced: Callable[[dict[str, Any]], None]
    """It is called with each line of progress."""
    ended: Callable[[Path | LmxError], Awaitable[None]]
    """It is called with the outcome: the path that was made, or the error."""
    broke: Callable[[Exception], Awaitable[None]]
    """It is called with an error of this process: the program could not be started, or ``ended``
    failed."""


class FetchRuns:
    """The owner of the fetch program's processes, those of loads and those of downloads. Each key
    has one process at a time."""

    def __init__(self, program: FetchProgram) -> None:
        self._program = program
        self._runs: dict[asyncio.Task[None], str] = {}
        """The key of each task, also of tasks that were stopped and still wait for their process to
        end."""

    @property
    def running(self) -> bool:
        """Whether anything is fetched, or waits for its turn."""
        return bool(self._runs)

    def start(self, key: str, fetch: Fetch, places: asyncio.Semaphore | None = None) -> None:
        """Begin a run. Its process is started when the stopped processes of the same key are gone
        and one of ``places`` is free."""
        before = self._of(key)
        task = begin(self._run(fetch, before, places), f"the fetch of {fetch.source}")
        self._runs[task] = key
        task.add_done_callback(self._runs.pop)

    def stop(self, key: str) -> None:
        """End the run of a key. Returns before its process is gone."""
        for task in self._of(key):
            _cancel(task)

    async def wait_stopped(self, key: str) -> None:
        """Return when the processes of a key are gone, or should be gone."""
        await _gone(self._of(key))

    async def wait_all_stopped(self) -> None:
        """Return when the processes of all runs that were stopped are gone, or should be gone."""
        await _gone([task for task in self._runs if task.cancelling()])

    async def close(self) -> None:
        """End all runs and return when their processes are gone."""
        tasks = list(self._runs)
        for task in tasks:
            _cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _of(self, key: str) -> list[asyncio.Task[None]]:
        return [task for task, its_key in self._runs.items() if its_key == key]

    async def _run(
        self, fetch: Fetch, before: Sequence[asyncio.Task[None]], places: asyncio.Semaphore | None
    ) -> None:
        try:
            if before:
                await asyncio.wait(before)
            async with places or contextlib.nullcontext():
                outcome = await self._program.run(fetch.source, fetch.options, fetch.advanced)
            await fetch.ended(outcome)
        except Exception as error:
            log.exception("fetch.failed", source=fetch.source)
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                await fetch.broke(error)


async def _gone(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=2 * FETCH_GRACE_S)


def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a run, and only once: a second time would keep it from waiting for its process."""
    if not task.cancelling():
        task.cancel()


@dataclass(eq=False, repr=False)
class LoadFetches:
    """The fetches of models that will be loaded, each with its adapters. ``on_advance(model_id,
    phase, fraction)`` and ``on_end(model_id, path or error, unfetched)`` are called on the event
    loop. The error is an ``OSError`` if this machine did not run the program. ``unfetched`` says
    why adapters could not be fetched, by their sources: the model is loaded without them."""

    _program: FetchProgram
    _runs: FetchRuns
    _on_advance: Callable[[str, LoadPhase, float | None], None]
    _on_end: Callable[[str, Path | LmxError | OSError, Mapping[str, str]], Awaitable[None]]

    def start(self, model: ModelConfig) -> None:
        """Begin to fetch a model. There is one fetch at a time for a model."""

        def advanced(report: dict[str, Any]) -> None:
            self._on_advance(model.id, LoadPhase(report["phase"]), report.get("fraction"))

        async def ended(outcome: Path | LmxError) -> None:
            unfetched: dict[str, str] = {}
            if isinstance(outcome, Path):
                for source in dict.fromkeys(model.hub_adapters):
                    found = await self._program.run(source, ("--adapter",), advanced)
                    if isinstance(found, LmxError):
                        unfetched[source] = found.message
            if isinstance(outcome, LmxError):
                # The error names a field of a download, but a load has none of these fields.
                outcome = UnavailableError(
                    outcome.code, outcome.message, retry_after_s=outcome.retry_after_s
                )
            await self._on_end(model.id, outcome, unfetched)

        async def broke(error: Exception) -> None:
            if not isinstance(error, OSError):
                message = f"the fetch broke: {error}"
                error = UnavailableError(ErrorCode.DOWNLOAD_FAILED, message)
            await self._on_end(model.id, error, {})

        self._runs.start(_key(model.id), Fetch(model.source, (), advanced, ended, broke))

    def stop(self, model_id: str) -> None:
        """End a fetch. Neither of the callbacks follows."""
        self._runs.stop(_key(model_id))


def _key(model_id: str) -> str:
    """Return the key of a model's fetch, which differs from the keys of all downloads."""
    return f"load of {model_id}"
