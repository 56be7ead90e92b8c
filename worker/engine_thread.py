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
from typing import Final, Protocol

import structlog

from lmx.protocol.errors import ErrorCode
from lmx.protocol.heap import trim_heap
from lmx.protocol.states import LoadPhase
from lmx.worker.engine import Engine, ModelFacts
from lmx.worker.outbox import Outbox
from lmx.worker.progress import ProgressClock
from lmx.worker.row import Job, Row, RowCancelled, RowFailed, RowOutput

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

    def deliver(self, outputs: list[RowOutput]) -> None:
        """Rows advanced or ended: the outputs of one or more steps."""

    def engine_broke(self, error: Exception) -> None:
        """A step raised. No row ends any more, and none will be taken."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    row_id: int
    step: int


class EngineThread:
    """Runs an engine on a thread of its own. Methods are called on the event loop.

    Every submitted job gets exactly one output with an end, unless the engine breaks. The
    caller bounds the jobs in flight, and thereby the inbox: a job brings at most itself and
    one cancellation.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        max_rows: int,
        events: EngineEvents,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._make_engine = make_engine
        self._max_rows = max_rows
        self._events = events
        self._outbox = Outbox(loop, events.deliver)
        self._inbox: queue.SimpleQueue[Job | _Cancel | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.clock = ProgressClock()
        # Written by the engine thread alone, read by the loop: single stores.
        self.rows = 0
        self.steps = 0
        self.memory_bytes = 0
        # The engine thread's own.
        self._waiting: deque[Job] = deque()
        self._rows: dict[int, Row] = {}
        self._outputs: list[RowOutput] = []
        self._memory_read_s = 0.0
        self._stopping = False

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; its end comes through ``deliver``."""
        self.clock.begin(time.monotonic())
        self._inbox.put(job)

    def cancel(self, row_id: int) -> None:
        """End a job before the next step; a job that has ended already is left alone."""
        self._inbox.put(_Cancel(row_id, self.steps))

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait; returns False when it is stuck."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine, facts = self._load()
        except Exception as error:
            log.exception("engine.load_failed")
            failure = error
            self._outbox.call(lambda: self._events.load_failed(failure))
            return
        try:
            self._serve(engine, facts)
        except Exception as error:
            log.exception("engine.broke", rows=len(self._rows), steps=self.steps)
            failure = error
            self._post()
            self._outbox.call(lambda: self._events.engine_broke(failure))

    def _load(self) -> tuple[Engine, ModelFacts]:
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
        return engine, facts

    def _serve(self, engine: Engine, facts: ModelFacts) -> None:
        while True:
            self._take_inbox(engine)
            if self._stopping:
                return
            self._admit(engine, facts)
            if self._rows:
                self._step(engine)
            self._post()

    def _post(self) -> None:
        if self._outputs:
            self._outbox.post(self._outputs)
            self._outputs = []

    def _take_inbox(self, engine: Engine) -> None:
        rested = False
        while not self._stopping:
            try:
                if self._rows or self._waiting or self._outputs:
                    item = self._inbox.get_nowait()
                else:
                    item = self._inbox.get(timeout=None if rested else _REST_AFTER_S)
            except queue.Empty:
                if self._rows or self._waiting or self._outputs:
                    return
                engine.rest()
                trim_heap()
                self.memory_bytes = engine.memory_bytes()
                rested = True
                continue
            match item:
                case Job():
                    self._waiting.append(item)
                case _Cancel():
                    self._cancel(engine, item)
                case None:
                    self._stopping = True

    def _admit(self, engine: Engine, facts: ModelFacts) -> None:
        while self._waiting and len(self._rows) < self._max_rows and engine.can_admit():
            job = self._waiting.popleft()
            try:
                engine.admit(job.row)
                self._rows[job.row.row_id] = Row(
                    job, engine.detokenizer(), facts.eos_token_ids, time.monotonic()
                )
            except Exception:
                self._fail(engine, job)
        self.rows = len(self._rows)

    def _step(self, engine: Engine) -> None:
        result = engine.step()
        now = time.monotonic()
        self.steps += 1
        if result.tokens or result.prefill_tokens:
            self.clock.advance(now)
        for row_id, token in result.tokens:
            row = self._rows[row_id]
            try:
                output = row.advance(token, now)
            except Exception:
                self._fail(engine, row.job)
                continue
            if output is None:
                continue
            self._outputs.append(output)
            if output.end is not None:
                self._free(engine, row_id)
        if now - self._memory_read_s >= _MEMORY_INTERVAL_S:
            self._memory_read_s = now
            self.memory_bytes = engine.memory_bytes()

    def _cancel(self, engine: Engine, cancel: _Cancel) -> None:
        row = self._rows.get(cancel.row_id)
        if row is not None:
            where, request_id = "decode" if row.decoding else "prefill", row.job.request_id
            self._free(engine, cancel.row_id)
        else:
            job = next((job for job in self._waiting if job.row.row_id == cancel.row_id), None)
            if job is None:
                return  # It ended by itself while the cancellation was under way.
            where, request_id = "queued", job.request_id
            self._waiting.remove(job)
        log.info(
            "stream.cancelled",
            request_id=request_id,
            where=where,
            step_at_cancel=cancel.step,
            step_when_freed=self.steps,
        )
        self._outputs.append(RowOutput(cancel.row_id, "", 0, RowCancelled()))

    def _free(self, engine: Engine, row_id: int) -> None:
        engine.remove(row_id)
        self._rows.pop(row_id, None)
        self.rows = len(self._rows)

    def _fail(self, engine: Engine, job: Job) -> None:
        log.exception("row.failed", request_id=job.request_id)
        self._free(engine, job.row.row_id)
        end = RowFailed(
            ErrorCode.ENGINE_ERROR,
            "The model failed on this request: its log has the reason under the request id.",
        )
        self._outputs.append(RowOutput(job.row.row_id, "", 0, end))
