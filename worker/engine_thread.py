"""The only caller of the engine: admits rows first come first served, steps, cancels."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from lmx.protocol.heap import trim_heap
from lmx.protocol.states import LoadPhase
from lmx.worker.batch import Batch
from lmx.worker.engine import Engine, ModelFacts
from lmx.worker.jobs import Job, JobOutput
from lmx.worker.outbox import Outbox
from lmx.worker.progress import ProgressClock

log = structlog.get_logger()

# Long enough that a client's next request doesn't meet emptied caches, short enough that an
# idle model gives its cache back before another one loads.
_REST_AFTER_S: Final = 2.0
_MEMORY_INTERVAL_S: Final = 0.5


class EngineEvents(Protocol):
    """What the engine thread reports; every call arrives on the event loop."""

    def load_advanced(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        """The load made progress."""

    def loaded(self, engine: Engine, facts: ModelFacts, load_s: float) -> None:
        """The engine can take rows."""

    def load_failed(self, error: Exception) -> None:
        """The engine is of no use."""

    def deliver(self, outputs: list[JobOutput]) -> None:
        """Jobs advanced or ended: the outputs of one or more steps."""

    def computed(self, task_id: int, result: Any) -> None:
        """A task is done; ``result`` is an exception when it failed."""

    def engine_broke(self, error: Exception) -> None:
        """A step raised. No row ends any more, and none will be taken."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    job_id: int
    step: int


@dataclass(frozen=True, slots=True)
class _Task:
    task_id: int
    request: Any


@dataclass(frozen=True, slots=True)
class _CancelTask:
    task_id: int


class EngineThread:
    """Runs an engine on a thread of its own. Methods are called on the event loop.

    Every submitted job gets exactly one output that is its end, and every task exactly one
    result, unless the engine breaks or the task is cancelled. The caller bounds what is in
    flight, and thereby the inbox: a job or task brings at most itself and one cancellation.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        max_rows: int,
        events: EngineEvents,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._make_engine = make_engine
        self._events = events
        self._outbox = Outbox(loop, events.deliver)
        self._inbox: queue.SimpleQueue[Job | _Cancel | _Task | _CancelTask | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.clock = ProgressClock()
        # Written by the engine thread alone, read by the loop: single stores.
        self.rows = 0
        self.steps = 0
        self.memory_bytes = 0
        # The engine thread's own.
        self._batch = Batch(max_rows)
        self._tasks: deque[_Task] = deque()
        self._memory_read_s = 0.0
        self._stopping = False
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; its end comes through ``deliver``."""
        self.clock.begin(time.monotonic())
        self._inbox.put(job)

    def cancel(self, job_id: int) -> None:
        """End a job before the next step; a job that has ended already is left alone."""
        self._inbox.put(_Cancel(job_id, self.steps))

    def submit_task(self, task_id: int, request: Any) -> None:
        """Queue a task: the engine computes one between two steps. Its result comes through
        ``computed``."""
        self.clock.begin(time.monotonic())
        self._inbox.put(_Task(task_id, request))

    def cancel_task(self, task_id: int) -> None:
        """Drop a task that still waits, with the result None; one that runs is left alone."""
        self._inbox.put(_CancelTask(task_id))

    def stop(self, timeout_s: float, close_timeout_s: float = 1.0) -> bool:
        """Ask the thread to end and wait; returns False when it is stuck.

        It has ``timeout_s`` to get out of a step, and then, when it does, ``close_timeout_s``
        more to close the engine.
        """
        self._inbox.put(None)
        if self._thread.is_alive() and self._closing.wait(timeout_s):
            self._thread.join(close_timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine = self._load()
        except Exception as error:
            log.exception("engine.load_failed")
            failure = error
            self._outbox.call(lambda: self._events.load_failed(failure))
            return
        try:
            self._serve(engine)
            self._closing.set()
            engine.close()
        except Exception as error:
            log.exception("engine.broke", rows=self._batch.rows, steps=self.steps)
            failure = error
            self._post()
            self._outbox.call(lambda: self._events.engine_broke(failure))

    def _load(self) -> Engine:
        started_s = time.monotonic()

        def advanced(phase: LoadPhase, fraction: float | None, detail: str) -> None:
            self._outbox.call(lambda: self._events.load_advanced(phase, fraction, detail))

        engine = self._make_engine()
        facts = engine.load(advanced)
        # What a load leaves behind lives as long as the process: no collection need walk it.
        gc.collect()
        gc.freeze()
        self.memory_bytes = engine.memory_bytes()
        load_s = time.monotonic() - started_s
        self._outbox.call(lambda: self._events.loaded(engine, facts, load_s))
        return engine

    def _serve(self, engine: Engine) -> None:
        while True:
            self._take_inbox(engine)
            if self._stopping:
                return
            if self._tasks:
                self._compute(engine, self._tasks.popleft())
            self._batch.admit(engine)
            self.rows = self._batch.rows
            if self.rows:
                self._step(engine)
            self._post()

    def _post(self) -> None:
        if self._batch.outputs:
            self._outbox.post(self._batch.outputs)
            self._batch.outputs = []

    def _take_inbox(self, engine: Engine) -> None:
        rested = False
        while not self._stopping:
            busy = self._batch.busy or bool(self._tasks)
            try:
                if busy:
                    item = self._inbox.get_nowait()
                else:
                    item = self._inbox.get(timeout=None if rested else _REST_AFTER_S)
            except queue.Empty:
                if busy:
                    return
                engine.rest()
                trim_heap()
                self.memory_bytes = engine.memory_bytes()
                rested = True
                continue
            match item:
                case Job():
                    self._batch.add(item)
                case _Cancel(job_id, step):
                    self._batch.cancel(engine, job_id, step, self.steps)
                    self.rows = self._batch.rows
                case _Task():
                    self._tasks.append(item)
                case _CancelTask(task_id):
                    self._cancel_task(task_id)
                case None:
                    self._stopping = True

    def _compute(self, engine: Engine, task: _Task) -> None:
        result: Any
        try:
            result = engine.compute(task.request)
        except Exception as error:
            # It is the request's to fail, not the engine's: see Engine.compute.
            result = error
        now = time.monotonic()
        self.clock.advance(now)
        self._read_memory(engine, now)
        self._outbox.call(lambda: self._computed(task.task_id, result))

    def _computed(self, task_id: int, result: Any) -> None:
        self.clock.end()
        self._events.computed(task_id, result)

    def _cancel_task(self, task_id: int) -> None:
        kept = deque(task for task in self._tasks if task.task_id != task_id)
        if len(kept) < len(self._tasks):
            self._tasks = kept
            # Whoever waits for the thread to be idle must hear of this end too.
            self._outbox.call(lambda: self._computed(task_id, None))

    def _step(self, engine: Engine) -> None:
        result = self._batch.step(engine)
        now = time.monotonic()
        self.steps += 1
        if (
            result.tokens
            or result.prefill_tokens
            or result.started
            or result.found
            or result.search_tokens
        ):
            self.clock.advance(now)
        self.rows = self._batch.rows
        self._read_memory(engine, now)

    def _read_memory(self, engine: Engine, now: float) -> None:
        if now - self._memory_read_s >= _MEMORY_INTERVAL_S:
            self._memory_read_s = now
            self.memory_bytes = engine.memory_bytes()
