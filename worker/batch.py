"""The jobs that wait and the rows that run: admitting, stepping, cancelling. Engine thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.kv_shape import KvLayers
from lmx.worker.answers import begin_answer, echo_prompt, tell_found
from lmx.worker.engine import Engine, Hypothesis, RowRequest, RowStarted, StepOutput
from lmx.worker.fair_queue import FairQueue
from lmx.worker.jobs import Job, JobCancelled, JobFailed, JobOutput
from lmx.worker.kv_admission import KvAdmission
from lmx.worker.live_job import LiveJob
from lmx.worker.out_of_memory import is_out_of_memory
from lmx.worker.row import Row

log = structlog.get_logger()

_NOT_BEGUN = "The model's worker broke on another request before it began with this one: try again."
_ROW_FAILED = "The model failed on this request: its log has the reason under the request id."
_TOO_LARGE = (
    "There was not enough memory for this request: send a shorter one, or ask for fewer tokens "
    "or answers."
)
_GIVEN_UP = (
    "The machine's memory ran out, and this was the largest of the requests that ran: try again "
    "later, with a shorter prompt or for fewer tokens or answers."
)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How many rows may run at a time, for how long a job may wait for one, and what the KV
    caches of all rows may take (None: not counted)."""

    max_places: int
    max_queue_s: float
    kv_cache_bytes: int | None = None
    kv_layers: Sequence[KvLayers] = ()


class Batch:
    """The owners of jobs take turns, and each one's are first come, first served: a job's rows are
    admitted in order, and no job passes the one whose turn it is, however small it is.

    ``outputs`` collects what became final; the caller takes it. Every job that was added gets
    exactly one end in it, unless the engine breaks. An exception of the engine that concerns
    one row fails its job; others are passed on. While it is ``paused``, a row begins only when
    no other runs.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._kv = KvAdmission(limits.kv_layers, limits.kv_cache_bytes)
        self._waiting: FairQueue[Job] = FairQueue()
        self._live: dict[int, LiveJob] = {}
        self._job_of: dict[int, LiveJob] = {}
        self._filling: LiveJob | None = None
        self._places: dict[int, int] = {}
        self._searching: set[int] = set()
        self.outputs: list[JobOutput] = []
        self.paused = False

    @property
    def rows(self) -> int:
        """How many rows the engine has."""
        return len(self._job_of)

    @property
    def kv_bytes(self) -> int:
        """What the KV caches of the rows are counted at."""
        return self._kv.total_bytes

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits, or is to be taken."""
        return bool(self._live or self._waiting or self.outputs)

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.add(job.owner, job)

    def expire(self, now: float) -> None:
        """Fail the jobs that have waited too long for their first row."""
        limit_s = self._limits.max_queue_s
        # The first of each owner has waited longest of its own: nobody passes.
        for job in self._waiting.take_first(lambda one: now - one.arrived_s >= limit_s):
            message = (
                f"The request waited {now - job.arrived_s:.0f} s for its turn, and the limit is "
                f"{limit_s:g} s (max_queue_s): nothing was made. Try again when the model has "
                "less to do."
            )
            self.outputs.append(JobFailed(job.job_id, ErrorCode.QUEUE_TIMEOUT, message))
        if not self.paused:
            return
        for job in self._waiting.take_out(lambda one: _outwaited(one, now)):
            message = (
                f"The machine is short of memory, and the request waited {now - job.arrived_s:.0f} "
                "s for it to get better: nothing was made. It waits no longer than for a model "
                "that is to be loaded (server.load_wait_s). Try again later."
            )
            self.outputs.append(JobFailed(job.job_id, ErrorCode.INSUFFICIENT_MEMORY, message))

    def give_up_waiting(self) -> None:
        """Fail the jobs that have no row: the engine is broken, and none of them broke it."""
        for job in self._waiting.take_out(lambda _: True):
            self.outputs.append(JobFailed(job.job_id, ErrorCode.WORKER_LOST, _NOT_BEGUN))

    def admit(self, engine: Engine) -> None:
        """Give the engine the rows that it has room for now."""
        while engine.can_admit():
            live = self._filling
            if live is None:
                if not self._waiting or not self._fits(self._waiting.peek().rows[0]):
                    return
                job = self._waiting.pop()
                live = LiveJob.begin(job, time.monotonic())
                self._live[job.job_id] = self._filling = live
            index, row = live.waiting[0]
            if not self._fits(row):
                return
            live.waiting.popleft()
            if not live.waiting:
                self._filling = None
            try:
                self._begin(engine, live, index, row)
            except Exception as error:
                self._fail(engine, live, error)

    def step(self, engine: Engine) -> StepOutput:
        """Advance every row; returns what the engine said of it."""
        result = engine.step()
        now = time.monotonic()
        if result.search_tokens:
            for row_id in self._searching:  # Each of them, by a token.
                self._kv.made(row_id)
        for started in result.started:
            if (live := self._job_of.get(started.row_id)) is not None:
                try:
                    self._started(engine, live, started, now)
                except Exception as error:
                    self._fail(engine, live, error)
        for drafts in result.drafts:
            if (live := self._job_of.get(drafts.row_id)) is not None:
                live.drafted(drafts)
        for row_id, token, scores in result.tokens:
            live = self._job_of.get(row_id)
            if live is None:
                continue  # It ended with an earlier token of this step.
            if live.first_token_s is None:
                live.first_token_s = now
            self._kv.made(row_id)
            row = live.rows[row_id]
            try:
                ended = row.advance(token, scores, self.outputs)
            except Exception as error:
                self._fail(engine, live, error)
                continue
            if ended:
                self._row_ended(engine, live, row_id, row, now)
        for row_id, hypotheses in result.found:
            if (live := self._job_of.get(row_id)) is not None:
                self._found(engine, live, row_id, hypotheses, now)
        for row_id, reason in result.failed:
            if (live := self._job_of.get(row_id)) is not None:
                self._fail(engine, live, reason)
        return result

    def cancel(self, engine: Engine, job_id: int, step_at_cancel: int, step: int) -> None:
        """End a job wherever it is; one that has ended already is left alone."""
        live = self._live.get(job_id)
        if live is not None:
            where = "prefill" if live.first_token_s is None else "decode"
            request_id = live.job.request_id
            self._drop(engine, live)
        else:
            waiting = self._waiting.take_out(lambda one: one.job_id == job_id)
            if not waiting:
                return  # It ended by itself while the cancellation was under way.
            where, request_id = "queued", waiting[0].request_id
        log.info(
            "stream.cancelled",
            request_id=request_id,
            where=where,
            step_at_cancel=step_at_cancel,
            step_when_freed=step,
        )
        self.outputs.append(JobCancelled(job_id))

    def fail_largest(self, engine: Engine) -> None:
        """Fail the newest of the largest jobs that run, for its memory; none runs: nothing."""
        running = [live for live in self._live.values() if live.rows]
        if not running:
            return
        # Of equals max takes the first: the newest, that way round.
        live = max(reversed(running), key=lambda one: self._kv.size(one.rows))
        kv_bytes, tokens = self._kv.size(live.rows)
        log.warning(
            "row.given_up", request_id=live.job.request_id, kv_bytes=kv_bytes, tokens=tokens
        )
        self._drop(engine, live)
        end = JobFailed(live.job.job_id, ErrorCode.INSUFFICIENT_MEMORY, _GIVEN_UP)
        self.outputs.append(end)

    def _fits(self, row: RowRequest) -> bool:
        if self.paused and self._job_of:
            return False
        places = sum(self._places.values()) + row.places
        return places <= self._limits.max_places and self._kv.fits(row)

    def _begin(self, engine: Engine, live: LiveJob, index: int, row: RowRequest) -> None:
        # Before its place is taken: a request whose row can't even be made must not keep one.
        live.rows[row.row_id] = begin_answer(engine, live.job, index)
        self._job_of[row.row_id] = live
        self._places[row.row_id] = row.places
        self._kv.begin(row)
        engine.admit(row)

    def _started(self, engine: Engine, live: LiveJob, started: RowStarted, now: float) -> None:
        if live.started is None:
            live.started = started
        if live.job.rows[0].beam is not None:
            self._searching.add(started.row_id)
            # It shows no token before its end, but from here on it makes them.
            live.first_token_s = now
        # The answers of a beam search begin when they are found.
        elif live.job.rules.echo:
            echo_prompt(engine, live.job, live.rows[started.row_id], started, self.outputs)

    def _found(
        self,
        engine: Engine,
        live: LiveJob,
        row_id: int,
        hypotheses: Sequence[Hypothesis],
        now: float,
    ) -> None:
        live.rows.pop(row_id)
        self._forget(row_id)
        try:
            tell_found(engine, live, hypotheses, self.outputs)
        except Exception as error:
            self._fail(engine, live, error)
        else:
            self._finish(live, now)

    def _row_ended(self, engine: Engine, live: LiveJob, row_id: int, row: Row, now: float) -> None:
        engine.remove(row_id)
        self._forget(row_id)
        del live.rows[row_id]
        live.count(row)
        if not live.rows and not live.waiting:
            self._finish(live, now)

    def _finish(self, live: LiveJob, now: float) -> None:
        del self._live[live.job.job_id]
        self.outputs.append(live.finished(now))

    def _fail(self, engine: Engine, live: LiveJob, error: Exception) -> None:
        log.error("row.failed", request_id=live.job.request_id, exc_info=error)
        self._drop(engine, live)
        code, message = ErrorCode.ENGINE_ERROR, _ROW_FAILED
        if isinstance(error, LmxError):
            code, message = error.code, error.message
        if is_out_of_memory(error):
            code, message = ErrorCode.INSUFFICIENT_MEMORY, _TOO_LARGE
        self.outputs.append(JobFailed(live.job.job_id, code, message))

    def _drop(self, engine: Engine, live: LiveJob) -> None:
        for row_id in live.rows:
            engine.remove(row_id)
            self._forget(row_id)
        live.rows.clear()
        if self._filling is live:
            self._filling = None
        del self._live[live.job.job_id]

    def _forget(self, row_id: int) -> None:
        self._job_of.pop(row_id, None)
        self._places.pop(row_id, None)
        self._searching.discard(row_id)
        self._kv.end(row_id)


def _outwaited(job: Job, now: float) -> bool:
    return job.memory_wait_s is not None and now - job.arrived_s >= job.memory_wait_s
