"""Every stream of this worker, from its request to its end. Event loop only."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from lmx.protocol.data import Accepted, Failed, Finished, Generate, Outputs, Pulse, Refused
from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.specs import WorkerSpec
from lmx.worker.engine import Engine, ModelFacts
from lmx.worker.engine_thread import EngineThread
from lmx.worker.outgoing import Outgoing, RouterOutputs
from lmx.worker.prepare import prepare
from lmx.worker.progress import ProgressClock
from lmx.worker.queue_estimate import QueueEstimate
from lmx.worker.row import Job, RowFailed, RowFinished, RowOutput
from lmx.worker.streams import Stream

log = structlog.get_logger()


class Refusal(NamedTuple):
    """Why no stream is taken now."""

    code: ErrorCode
    message: str
    retry_after_s: float | None


@dataclass(slots=True, eq=False)
class _Open:
    router: bytes
    row_id: int
    request: Generate
    stream: Stream
    preparing: bool = True
    gone: bool = False


class Generations:
    """Takes requests through the prompt thread and the engine thread, and their text back out.

    Holds at most ``max_rows + max_queue`` streams, those that were cancelled and still have
    their row included. ``send`` gets a router and a message; ``became_idle`` is called each
    time the last one has ended. ``refusal`` is set by the owner while no stream may begin.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        send: Callable[[bytes, Any], None],
        became_idle: Callable[[], None],
        refusal: Refusal,
    ) -> None:
        self._spec = spec
        self._send = send
        self._became_idle = became_idle
        self.refusal: Refusal | None = refusal
        self.requests_total = 0
        self.tokens_total = 0
        self._engine_thread: EngineThread | None = None
        self._prompt_thread = ThreadPoolExecutor(1, thread_name_prefix="prompt")
        self._prompt_clock = ProgressClock()
        self._open: dict[tuple[bytes, int], _Open] = {}
        self._by_row: dict[int, _Open] = {}
        self._row_ids = itertools.count(1)
        self._estimate = QueueEstimate(spec.max_rows)

    def start(self, thread: EngineThread, engine: Engine, facts: ModelFacts) -> None:
        """Take streams from now on."""
        self._engine_thread, self._engine, self._facts = thread, engine, facts
        self.refusal = None

    @property
    def held(self) -> int:
        """How many streams occupy a row or a place in the queue."""
        running = self._engine_thread.clock.in_flight if self._engine_thread else 0
        return self._prompt_clock.in_flight + running

    def stalled_for_s(self, now: float) -> float:
        """Return for how long work has made no progress, on the thread that is worse off."""
        engine_s = self._engine_thread.clock.stalled_for_s(now) if self._engine_thread else 0.0
        return max(self._prompt_clock.stalled_for_s(now), engine_s)

    def generate(self, router: bytes, request: Generate) -> None:
        """Begin a stream, or refuse it."""
        key = (router, request.stream_id)
        if key in self._open:
            log.warning("data.stream_id_in_use", request_id=request.request_id)
            return
        refusal = self.refusal
        if refusal is None and self.held >= self._spec.max_rows + self._spec.max_queue:
            refusal = Refusal(
                ErrorCode.QUEUE_FULL,
                f"The queue of this model is full ({self._spec.max_queue}): try again later.",
                self._estimate.retry_after_s(),
            )
        if refusal is not None:
            code, message, retry_after_s = refusal
            self._send(
                router,
                Refused(request.stream_id, code, message, retry_after_s=retry_after_s),
            )
            return
        stream = Stream(request.stream_id, request.credit_deltas)
        opened = _Open(router, next(self._row_ids), request, stream)
        self._open[key] = opened
        now = time.monotonic()
        self._prompt_clock.begin(now)
        asyncio.get_running_loop().run_in_executor(
            self._prompt_thread, self._prepare, opened, now
        ).add_done_callback(lambda future: self._prepared(opened, future))

    def credit(self, router: bytes, stream_id: int, deltas: int) -> None:
        """Give a stream credit; one that has ended is ignored."""
        opened = self._open.get((router, stream_id))
        delta = opened.stream.grant(deltas) if opened else None
        if delta is not None:
            self._send(router, Outputs((delta,)))

    def cancel(self, router: bytes, stream_id: int) -> None:
        """Forget a stream and free its row before the next step."""
        opened = self._open.get((router, stream_id))
        if opened is None:
            return
        self._forget(opened)
        if not opened.preparing and self._engine_thread is not None:
            self._engine_thread.cancel(opened.row_id)

    def cancel_router(self, router: bytes) -> None:
        """Forget every stream of a router that can't be reached any more."""
        for owner, stream_id in list(self._open):
            if owner == router:
                self.cancel(owner, stream_id)

    def deliver(self, outputs: list[RowOutput]) -> None:
        """Send what became final, in one message for each router."""
        outgoing = Outgoing()
        for row_id, text, tokens, end in outputs:
            self.tokens_total += tokens
            opened = self._by_row.get(row_id)
            if opened is not None:
                if text and (delta := opened.stream.add(text, tokens)) is not None:
                    outgoing.to(opened.router).deltas.append(delta)
                # A row that was cancelled is not in the table any more.
                if isinstance(end, RowFinished | RowFailed):
                    self._end(opened, end, outgoing.to(opened.router))
            if end is not None and self._engine_thread is not None:
                self._engine_thread.clock.end()
        outgoing.send(self._send)
        if self.held == 0:
            self._became_idle()

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """End every stream with an error; their rows are not waited for."""
        outgoing = Outgoing()
        for (router, stream_id), opened in list(self._open.items()):
            if opened.gone:
                continue  # Its router could not be reached a moment ago: all its streams went.
            if opened.preparing:
                self._forget(opened)
                self._send(router, Refused(stream_id, code, message))
            else:
                self._end(opened, RowFailed(code, message), outgoing.to(router))
        outgoing.send(self._send)

    def pulse(self, instance: str) -> None:
        """Tell every router with an open stream that this loop lives."""
        counts: dict[bytes, int] = {}
        for router, _ in self._open:
            counts[router] = counts.get(router, 0) + 1
        for router, streams in counts.items():
            self._send(router, Pulse(instance, streams))

    def _prepare(self, opened: _Open, arrived_s: float) -> Job | None:
        # On the prompt thread. A request that was cancelled meanwhile isn't worth tokenizing.
        if opened.gone:
            return None
        return prepare(
            self._engine, self._facts, self._spec, opened.request, opened.row_id, arrived_s
        )

    def _prepared(self, opened: _Open, future: asyncio.Future[Job | None]) -> None:
        self._prompt_clock.advance(time.monotonic())
        self._prompt_clock.end()
        opened.preparing = False
        error = future.exception()
        if opened.gone or self._engine_thread is None:
            self._log_cancelled(opened)
        elif error is None and (job := future.result()) is not None:
            self._by_row[opened.row_id] = opened
            self._engine_thread.submit(job)
            self.requests_total += 1
            queued = max(0, self._engine_thread.clock.in_flight - self._spec.max_rows)
            self._send(
                opened.router, Accepted(opened.request.stream_id, len(job.row.prompt), queued)
            )
        else:
            self._refuse(opened, error)
        if self.held == 0:
            self._became_idle()

    def _refuse(self, opened: _Open, error: BaseException | None) -> None:
        stream_id = opened.request.stream_id
        self._forget(opened)
        if isinstance(error, RequestError):
            refused = Refused(
                stream_id, error.code, error.message, error.param, error.retry_after_s
            )
        else:
            log.error("prompt.failed", request_id=opened.request.request_id, exc_info=error)
            refused = Refused(
                stream_id, ErrorCode.INTERNAL, "The prompt could not be made; see the log."
            )
        self._send(opened.router, refused)

    def _forget(self, opened: _Open) -> None:
        opened.gone = True
        del self._open[opened.router, opened.request.stream_id]
        self._by_row.pop(opened.row_id, None)

    def _end(self, opened: _Open, end: RowFinished | RowFailed, batch: RouterOutputs) -> None:
        stream_id, request_id = opened.request.stream_id, opened.request.request_id
        self._forget(opened)
        if (pending := opened.stream.close()) is not None:
            batch.deltas.append(pending)
        match end:
            case RowFinished(reason, usage, timings):
                self._estimate.ended(timings.prefill_s + timings.decode_s)
                batch.finished.append(Finished(stream_id, reason, usage, timings))
                log.info(
                    "stream.finished",
                    request_id=request_id,
                    reason=reason,
                    prompt_tokens=usage.prompt_tokens,
                    completion_tokens=usage.completion_tokens,
                    queue_s=round(timings.queue_s, 4),
                    prefill_s=round(timings.prefill_s, 4),
                    decode_s=round(timings.decode_s, 4),
                )
            case RowFailed(code, message):
                batch.failed.append(Failed(stream_id, code, message))
                log.warning("stream.failed", request_id=request_id, code=code)

    def _log_cancelled(self, opened: _Open) -> None:
        step = self._engine_thread.steps if self._engine_thread else 0
        log.info(
            "stream.cancelled",
            request_id=opened.request.request_id,
            where="queued",
            step_at_cancel=step,
            step_when_freed=step,
        )
