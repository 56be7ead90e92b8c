"""Lets separate processes (:mod:`lmx.supervisor.memory.inspect_main`) read the files of models,
each within a deadline. Files that hang or crash their reader harm only their own model."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ProtocolError
from lmx.protocol.host.lasting import begin
from lmx.protocol.wire import codec
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.secret_variables import without_keys
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.memory.inspection import Inspection, Question, read_answer, shown
from lmx.supervisor.processes.patience import done_within
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

_ANSWER_S: Final = 15.0
"""The largest header that is read takes one or two seconds, and a disk that sleeps takes ten. Time
in which the reader waits for a processor does not count."""

_LONGEST_S: Final = 120.0
"""By the clock."""

_SOON_S: Final = 6.0
"""The limit where a client waits."""

_LONGEST_SOON_S: Final = 24.0
"""By the clock. Clients wait thirty seconds for an answer."""

_SLOW_S: Final = 0.4
"""Another reader is started when one takes longer than this, without its waits for a processor. To
start one takes a hundred times as long as to read the files of a model on a disk of today."""

_LONGEST_SLOW_S: Final = 4.0
"""By the clock."""

_MOST_READERS: Final = 32
"""This counts readers that not even SIGKILL ends, as on a network mount that is gone."""
_MOST_OF_ONE: Final = 4
"""So many of them may have been asked the same: the others are for models on other disks."""

_IDLE_S: Final = 60.0
_LINE_LIMIT_BYTES: Final = 8 * 1024**2
_GONE_S: Final = 5.0


class InspectionError(Exception):
    """There is no answer. The text says why, for people."""

    by_host = False
    """Whether the machine is to blame, and not the files, so that it may pass by itself."""


class _NoReaderError(InspectionError):
    """The machine gives no reader now."""

    by_host = True


class _ReaderLostError(InspectionError):
    """The reader ended, or said nothing: another one may be asked."""

    def __init__(self, why: str, *, by_host: bool) -> None:
        super().__init__(why)
        self.by_host = by_host


class Inspector:
    """Asks readers: one at a time, not counting those that are slow. A reader that has answered is
    kept for a minute for the next question. All runs on one event loop, and nothing blocks it."""

    def __init__(self, home: Home, answer_s: float = _ANSWER_S) -> None:
        self._home = home
        self._answer_s = answer_s
        self._turn = asyncio.Lock()
        self._idle: list[asyncio.subprocess.Process] = []
        self._busy: set[asyncio.subprocess.Process] = set()
        self._leaving: dict[asyncio.Task[int], str] = {}
        """Readers that were killed, and what each was asked."""
        self._closing = False
        self._retirement: asyncio.TimerHandle | None = None

    async def inspect_soon(self, question: Question) -> Inspection:
        """Do what :meth:`inspect` does, within the time that a client waits for an answer."""
        return await self.inspect(question, _SOON_S)

    async def inspect(self, question: Question, answer_s: float | None = None) -> Inspection:
        """Return what a model's files say. If they can't be read, ``problem`` says why."""
        try:
            answer = await self._ask({"model": codec.to_map(question)}, answer_s)
            return read_answer(question, answer.get("inspection"))
        except InspectionError as error:
            why, by_host = str(error), error.by_host
        except ProtocolError as error:
            why, by_host = error.message, False
        where = question.path or question.source
        log.warning("model.not_inspected", source=question.source, error=why)
        problem = shown(f"{where} can't be read: {why}")
        return Inspection(question, question.path, problem=problem, by_host=by_host)

    async def is_whole(self, file: Path) -> bool:
        """Return whether a file is there, with all parts of its model. Returns False for what can't
        be read."""
        try:
            answer = await self._ask({"whole": str(file)})
        except InspectionError as error:
            log.warning("files.not_inspected", path=str(file), error=str(error))
            return False
        return answer.get("whole") is True

    async def wait_closed(self) -> None:
        """End all readers, and wait a moment for them to be gone. Callers that still wait get an
        error. A reader that nothing ends stays behind."""
        self._closing = True
        if self._retirement is not None:
            self._retirement.cancel()
        for reader in (*self._idle, *self._busy):
            _kill(reader)
        for reader in self._idle:
            self._leave(reader)
        self._idle.clear()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_GONE_S)
        for task in self._leaving:
            task.cancel()

    async def _ask(self, question: dict[str, Any], answer_s: float | None = None) -> dict[str, Any]:
        """Ask a reader. If it is lost, that may have nothing to do with the files, and another one
        is asked: once, and for a client that waits in what is left of its time."""
        began_s = time.monotonic()
        try:
            return await self._ask_one(question, answer_s)
        except _ReaderLostError:
            left_s = None if answer_s is None else began_s + answer_s - time.monotonic()
            if self._closing or (left_s is not None and left_s <= 0.0):
                raise
            log.warning("reader.lost", question=question)
            return await self._ask_one(question, left_s)

    async def _ask_one(self, question: dict[str, Any], answer_s: float | None) -> dict[str, Any]:
        limit_s = self._answer_s if answer_s is None else answer_s
        soon_s = min(_SLOW_S, limit_s)
        asked = json.dumps(question)
        if list(self._leaving.values()).count(asked) >= _MOST_OF_ONE:
            raise _NoReaderError("earlier reads of it still hang: is its disk gone?")
        began_s = time.monotonic()
        try:
            # Where a client waits, its turn comes in what the answer leaves of its time.
            async with asyncio.timeout(None if answer_s is None else _LONGEST_SOON_S - answer_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise _NoReaderError("lmx is still reading the files of other models") from error
        waited_s = time.monotonic() - began_s
        try:
            if self._closing:
                raise InspectionError("lmx is shutting down")
            reader = await self._reader()
            self._busy.add(reader)
            asking = asyncio.get_running_loop().create_task(self._exchange(reader, asked))
            try:
                await done_within(asking, soon_s, _LONGEST_SLOW_S, reader.pid)
            except asyncio.CancelledError:
                self._done_with(reader, asking, asked)
                raise
        finally:
            # A reader that is slow, or hangs, must not keep others waiting.
            self._turn.release()
        try:
            most_s = _LONGEST_S if answer_s is None else _LONGEST_SOON_S - waited_s
            await done_within(asking, limit_s - soon_s, most_s - soon_s, reader.pid)
        finally:
            self._done_with(reader, asking, asked)
        if asking.cancelled() or not asking.done():
            why = f"no answer within {limit_s:g} s: is its disk there?"
            raise _ReaderLostError(why, by_host=True)
        answer = asking.result()
        if "error" in answer:
            raise InspectionError(str(answer["error"]))
        return answer

    def _done_with(
        self, reader: asyncio.subprocess.Process, asking: asyncio.Task[dict[str, Any]], asked: str
    ) -> None:
        answered = asking.done() and not asking.cancelled() and asking.exception() is None
        asking.cancel()
        self._busy.discard(reader)
        if answered and not self._closing and reader.returncode is None and not self._idle:
            self._idle.append(reader)
            self._retire_later()
            return
        _kill(reader)
        self._leave(reader, asked)

    async def _exchange(self, reader: asyncio.subprocess.Process, asked: str) -> dict[str, Any]:
        assert reader.stdin is not None and reader.stdout is not None
        try:
            reader.stdin.write(asked.encode() + b"\n")
            await reader.stdin.drain()
            line = await reader.stdout.readline()
        except (OSError, ValueError) as error:
            raise await _lost(reader, f"its reader broke: {error}") from error
        if not line.endswith(b"\n"):
            raise await _lost(reader, "its reader ended: the files are too much for it")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise InspectionError("its reader said nothing that makes sense")
        return answer

    async def _reader(self) -> asyncio.subprocess.Process:
        while self._idle:
            reader = self._idle.pop()
            if reader.returncode is None:
                return reader
        if len(self._busy) + len(self._leaving) >= _MOST_READERS:
            raise _NoReaderError("earlier reads still hang: is a disk gone?")
        environment = {**without_keys(os.environ), "LMX_HOME": str(self._home.path)}
        try:
            # -P: nothing is imported from the working directory.
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "lmx.supervisor.memory.inspect_main",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
                limit=_LINE_LIMIT_BYTES, env=environment,
            )  # fmt: skip
        except OSError as error:
            raise _NoReaderError(f"can't start its reader: {error.strerror or error}") from error

    def _leave(self, reader: asyncio.subprocess.Process, asked: str = "") -> None:
        """End a reader without waiting for it. One that hangs in a disk access ends when that
        does."""
        task = begin(reader.wait(), "the end of a reader")
        self._leaving[task] = asked
        task.add_done_callback(self._leaving.pop)

    def _retire_later(self) -> None:
        if self._retirement is not None:
            self._retirement.cancel()
        self._retirement = asyncio.get_running_loop().call_later(_IDLE_S, self._retire)

    def _retire(self) -> None:
        self._retirement = None
        while self._idle:
            reader = self._idle.pop()
            _kill(reader)
            self._leave(reader)


class Inspections:
    """The inspections that models wait for. Each model has one at a time, for the latest question.
    ``on_answer(model_id, inspection)`` is called on the event loop."""

    def __init__(self, inspector: Inspector, on_answer: Callable[[str, Inspection], None]) -> None:
        self._inspector = inspector
        self._on_answer = on_answer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, Question] = {}

    def ask(self, model_id: str, question: Question) -> None:
        """Ask for a model's files to be read. An earlier question about the same model gets no
        answer of its own, because the files may have changed since they were read."""
        self._waiting[model_id] = question
        if model_id not in self._tasks:
            self._tasks[model_id] = begin(self._run(model_id), f"the look at {model_id}")

    def close(self) -> None:
        """Give up the questions that were not answered yet."""
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, model_id: str) -> None:
        try:
            while model_id in self._waiting:
                question = self._waiting.pop(model_id)
                found = await self._inspector.inspect(question)
                again = self._waiting.get(model_id)
                if again is None or (again == question and found.problem is not None):
                    # Files that can't be read are not read again at once, because that may take
                    # the whole time limit again.
                    self._waiting.pop(model_id, None)
                    self._on_answer(model_id, found)
        except Exception:
            log.exception("inspection.failed", model=model_id)
        finally:
            del self._tasks[model_id]


def inspect_now(home: Home, questions: Sequence[Question]) -> list[Inspection]:
    """Return what the files of models say, for a program without an event loop. This blocks, not
    much longer than the deadline."""

    async def ask() -> list[Inspection]:
        inspector = Inspector(home)
        try:
            return await asyncio.gather(*(inspector.inspect(each) for each in questions))
        finally:
            await inspector.wait_closed()

    return asyncio.run(ask())


def _kill(reader: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        reader.kill()


async def _lost(reader: asyncio.subprocess.Process, why: str) -> _ReaderLostError:
    """Return the error for a reader that is gone. Its files may be to blame: its own limits end it
    by SIGXCPU, or as a program that failed. A system short of memory kills it, as people do."""
    with contextlib.suppress(TimeoutError):
        if await asyncio.wait_for(reader.wait(), _GONE_S) in (-signal.SIGKILL, -signal.SIGTERM):
            return _ReaderLostError("its reader was killed", by_host=True)
    return _ReaderLostError(why, by_host=False)


def unreadable_models(models: Sequence[ModelConfig], home: Home) -> list[tuple[str, str]]:
    """Return models whose files, or an adapter's, can't be loaded: the id and the rest of a
    sentence for each mistake. Those that are not here yet, and may be fetched, are not among
    them."""
    found = inspect_now(home, [question_of(model) for model in models])
    sentences = []
    for model, each in zip(models, found, strict=True):
        problem = each.problem or each.source_problem
        if problem is not None:
            sentences.append((model.id, f"can't be loaded: {problem}"))
        sentences += [
            (model.id, f"can't use its adapter {adapter}: {problem}")
            for adapter, problem in zip(model.adapters, each.adapter_problems, strict=False)
            if problem is not None
        ]
    return sentences
