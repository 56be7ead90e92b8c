"""Every stream of this worker, from its request to its end. Event loop only."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.fair_share import has_room
from lmx.protocol.messages.data import (
    Accepted,
    Failed,
    Finished,
    Generate,
    Preparing,
    Pulse,
    Refused,
)
from lmx.protocol.messages.specs import WorkerSpec
from lmx.worker.engine import Generator, ModelFacts, wrong_kind
from lmx.worker.scheduling.answer_review import AnswerReview
from lmx.worker.scheduling.jobs import AnswerEnded, Job, JobFailed, JobFinished, JobOutput, Piece
from lmx.worker.scheduling.out_of_memory import is_out_of_memory
from lmx.worker.scheduling.prepare import prepare
from lmx.worker.scheduling.thread import EngineThread
from lmx.worker.service.admission import IdleClock, QueueEstimate, Refusal, Totals
from lmx.worker.service.outgoing import Outgoing, RouterOutputs
from lmx.worker.service.prompt_thread import PromptThread
from lmx.worker.service.stream import OpenStream

log = structlog.get_logger()


class Generations:
    """Takes requests through the prompt thread and the engine thread, and their text back out.

    Holds at most ``max_rows + max_queue`` streams, never so many of one owner that others find no
    room (:mod:`lmx.protocol.fair_share`), those that were cancelled and still have
    their row included. ``send`` gets a router and a message; ``became_idle`` is called each
    time the last one has ended. ``refusal`` is set by the owner while no stream may begin.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        prompts: PromptThread,
        send: Callable[[bytes, Any], None],
        became_idle: Callable[[], None],
        refusal: Refusal,
    ) -> None:
        self._spec = spec
        self._send = send
        self._became_idle = became_idle
        self.refusal: Refusal | None = refusal
        self.totals = Totals()
        self.last_use = IdleClock()
        self._engine_thread: EngineThread | None = None
        self._prompts = prompts
        self._open: dict[tuple[bytes, int], OpenStream] = {}
        self._by_job: dict[int, OpenStream] = {}
        self._job_ids = itertools.count(1)
        self._row_ids = itertools.count(1)
        self._estimate = QueueEstimate()

    def start(self, thread: EngineThread, generator: Generator | None, facts: ModelFacts) -> None:
        """Take streams from now on."""
        self._engine_thread, self._generator, self._facts = thread, generator, facts
        self.last_use.loaded(time.monotonic())
        self.refusal = None

    @property
    def held(self) -> int:
        """How many streams occupy a row or a place in the queue."""
        running = self._engine_thread.clock.in_flight if self._engine_thread else 0
        return self._prompts.clock.in_flight + running

    def stalled_for_s(self, now: float) -> float:
        """Return for how long work has made no progress, on the thread that is worse off."""
        engine_s = self._engine_thread.clock.stalled_for_s(now) if self._engine_thread else 0.0
        return max(self._prompts.clock.stalled_for_s(now), engine_s)

    def refusal_now(self, owner: str, own_tasks: int = 0) -> Refusal | None:
        """Return why nothing of ``owner``, who has ``own_tasks`` beside its streams, is taken now;
        None when there is room."""
        if self.refusal is not None:
            return self.refusal
        places = self._spec.max_rows + self._spec.max_queue
        own = own_tasks + sum(one.request.owner == owner for one in self._open.values())
        if not has_room(places, self.held, own):
            whose = (
                "The queue of this model is full"
                if self.held >= places
                else f"{own} requests of yours run or wait already, and the rest of this model's "
                "queue is kept for others"
            )
            return Refusal(
                ErrorCode.QUEUE_FULL,
                f"{whose} ({self._spec.max_queue}): try again later.",
                self._estimate.retry_after_s(
                    self._engine_thread.rows if self._engine_thread else 0
                ),
            )
        return None

    def generate(self, router: bytes, request: Generate) -> None:
        """Begin a stream, or refuse it."""
        key = (router, request.stream_id)
        if key in self._open:
            log.warning("data.stream_id_in_use", request_id=request.request_id)
            return
        refusal = self.refusal_now(request.owner)
        if refusal is not None:
            code, message, retry_after_s = refusal
            self._send(
                router,
                Refused(request.stream_id, code, message, retry_after_s=retry_after_s),
            )
            return
        opened = OpenStream.begin(router, next(self._job_ids), request)
        self._open[key] = opened
        arrived_s = time.monotonic()
        self._prompts.run(
            request.owner,
            lambda: self._tell_preparing(opened),
            lambda: self._prepare(opened, arrived_s),
            lambda future: self._prepared(opened, future),
        )

    def credit(self, router: bytes, stream_id: int, deltas: int) -> None:
        """Give a stream credit; one that has ended is ignored."""
        opened = self._open.get((router, stream_id))
        granted = opened.stream.grant(deltas) if opened else []
        if granted:
            outgoing = Outgoing()
            outgoing.to(router).deltas += granted
            outgoing.send(self._send)

    def cancel(self, router: bytes, stream_id: int) -> None:
        """Forget a stream and free its row before the next step."""
        opened = self._open.get((router, stream_id))
        if opened is None:
            return
        self._forget(opened)
        if not opened.preparing and self._engine_thread is not None:
            self.last_use.ended(opened.request.keep_alive_s, time.monotonic())
            self._engine_thread.cancel(opened.job_id)

    def cancel_router(self, router: bytes) -> None:
        """Forget every stream of a router that can't be reached any more."""
        for owner, stream_id in list(self._open):
            if owner == router:
                self.cancel(owner, stream_id)

    def deliver(self, outputs: list[JobOutput]) -> None:
        """Send what became final, in one message for each router."""
        outgoing = Outgoing()
        for output in outputs:
            # A job that was cancelled is not in the table any more.
            opened = self._by_job.get(output.job_id)
            if isinstance(output, Piece | AnswerEnded):
                if isinstance(output, Piece):
                    self.totals.tokens += output.tokens
                if opened is not None:
                    opened.take(output, outgoing.to(opened.router))
                continue
            if opened is not None and isinstance(output, JobFinished | JobFailed):
                if isinstance(output, JobFinished) and opened.review is not None:
                    self._review(opened, opened.review, output)
                else:
                    self._end(opened, output, outgoing.to(opened.router))
            if self._engine_thread is not None:
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
                self._end(opened, JobFailed(opened.job_id, code, message), outgoing.to(router))
        outgoing.send(self._send)

    def pulse(self, instance: str) -> None:
        """Tell every router with an open stream that this loop lives."""
        counts: dict[bytes, int] = {}
        for router, _ in self._open:
            counts[router] = counts.get(router, 0) + 1
        for router, streams in counts.items():
            self._send(router, Pulse(instance, streams))

    def _tell_preparing(self, opened: OpenStream) -> None:
        if not opened.gone:
            self._send(opened.router, Preparing(opened.request.stream_id))

    def _prepare(self, opened: OpenStream, arrived_s: float, *, again: bool = False) -> Job | None:
        # On the prompt thread. A request that was cancelled meanwhile isn't worth tokenizing.
        if opened.gone:
            return None
        if self._generator is None:
            raise wrong_kind(self._spec.kind)
        return prepare(
            self._generator,
            self._facts,
            self._spec,
            opened.request,
            opened.job_id,
            self._row_ids.__next__,
            arrived_s,
            again=again,
        )

    def _prepared(self, opened: OpenStream, future: asyncio.Future[Job | None]) -> None:
        error = future.exception()
        opened.preparing = False
        if opened.gone or self._engine_thread is None:
            opened.log_cancelled(self._engine_thread.steps if self._engine_thread else 0)
        elif error is None and (job := future.result()) is not None:
            self._submit(opened, job)
            opened.prepared(job)
            self.totals.requests += 1
            queued = max(0, self._engine_thread.clock.in_flight - self._spec.max_rows)
            self._send(
                opened.router,
                Accepted(
                    opened.request.stream_id,
                    len(job.rows[0].prompt),
                    queued,
                    job.remarks,
                    tuple(job.rows[0].prompt) if opened.request.token_ids else (),
                ),
            )
        else:
            self._refuse(opened, error)
        if self.held == 0:
            self._became_idle()

    def _submit(self, opened: OpenStream, job: Job) -> None:
        assert self._engine_thread is not None
        self._by_job[opened.job_id] = opened
        self._engine_thread.submit(job)

    def _review(self, opened: OpenStream, review: AnswerReview, end: JobFinished) -> None:
        """Check answers that are whole before their ends are told."""
        del self._by_job[opened.job_id]
        self._prompts.run(
            opened.request.owner,
            _told_nothing,
            lambda: None if opened.gone else review.fault(),
            lambda future: self._reviewed(opened, review, end, future),
        )

    def _reviewed(
        self,
        opened: OpenStream,
        review: AnswerReview,
        end: JobFinished,
        future: asyncio.Future[str | None],
    ) -> None:
        error = future.exception()
        if opened.gone:
            pass
        elif error is not None:
            log.error("review.failed", request_id=opened.request.request_id, exc_info=error)
            message = "The answer could not be checked; see the log."
            self._end_alone(opened, JobFailed(opened.job_id, ErrorCode.INTERNAL, message))
        elif (fault := future.result()) is None:
            self._end_alone(opened, end)
        elif review.may_repeat:
            log.info("review.repeated", request_id=opened.request.request_id, reason=fault)
            opened.repeat(next(self._job_ids))
            # It waits for a turn of its own: the time of the first answer is no waiting.
            arrived_s = time.monotonic()
            self._prompts.run(
                opened.request.owner,
                _told_nothing,
                lambda: self._prepare(opened, arrived_s, again=True),
                lambda again: self._prepared_again(opened, again),
            )
        else:
            twice = " twice" if review.again else ""
            message = (
                f"The model's answer was no good{twice}: {fault}. Ask again with another prompt, "
                "or with a schema that is easier to satisfy."
            )
            code = ErrorCode.SCHEMA_NOT_MET
            self._end_alone(opened, JobFailed(opened.job_id, code, message))
        if self.held == 0:
            self._became_idle()

    def _prepared_again(self, opened: OpenStream, future: asyncio.Future[Job | None]) -> None:
        error = future.exception()
        job = None if error else future.result()
        if opened.gone:
            pass
        elif job is not None:
            self._submit(opened, job)
        else:
            log.error("prompt.failed", request_id=opened.request.request_id, exc_info=error)
            message = "The prompt could not be made once more; see the log."
            self._end_alone(opened, JobFailed(opened.job_id, ErrorCode.INTERNAL, message))
        if self.held == 0:
            self._became_idle()

    def _end_alone(self, opened: OpenStream, end: JobFinished | JobFailed) -> None:
        outgoing = Outgoing()
        part = outgoing.to(opened.router)
        if isinstance(end, JobFinished):
            opened.release(part)
        self._end(opened, end, part)
        outgoing.send(self._send)

    def _refuse(self, opened: OpenStream, error: BaseException | None) -> None:
        stream_id = opened.request.stream_id
        self._forget(opened)
        if isinstance(error, RequestError):
            refused = Refused(
                stream_id, error.code, error.message, error.param, error.retry_after_s
            )
        else:
            log.error("prompt.failed", request_id=opened.request.request_id, exc_info=error)
            code, message = ErrorCode.INTERNAL, "The prompt could not be made; see the log."
            if error is not None and is_out_of_memory(error):
                code = ErrorCode.INSUFFICIENT_MEMORY
                message = "There was not enough memory for this prompt: send a shorter one."
            refused = Refused(stream_id, code, message)
        self._send(opened.router, refused)

    def _forget(self, opened: OpenStream) -> None:
        opened.gone = True
        del self._open[opened.router, opened.request.stream_id]
        self._by_job.pop(opened.job_id, None)

    def _end(self, opened: OpenStream, end: JobFinished | JobFailed, part: RouterOutputs) -> None:
        stream_id = opened.request.stream_id
        self._forget(opened)
        self.last_use.ended(opened.request.keep_alive_s, time.monotonic())
        match end:
            case JobFinished(_, usage, timings):
                self._estimate.ended(timings.prefill_s + timings.decode_s)
                self.totals.finished(usage, timings)
                part.finished.append(Finished(stream_id, usage, timings))
            case JobFailed(_, code, message):
                opened.flush(part)
                part.failed.append(Failed(stream_id, code, message))
        opened.log_end(end)


def _told_nothing() -> None:
    """The router hears nothing of a turn on the prompt thread after the first."""
