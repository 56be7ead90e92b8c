"""The jobs that wait and the rows that run: admitting, stepping, cancelling. Engine thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from lmx.protocol.data import Timings, TokenLogprob, Usage
from lmx.protocol.errors import ErrorCode
from lmx.worker.engine import (
    Engine,
    Hypothesis,
    RowRequest,
    RowStarted,
    StepOutput,
    TokenScores,
)
from lmx.worker.jobs import Job, JobCancelled, JobFailed, JobFinished, JobOutput
from lmx.worker.logprob_track import describe
from lmx.worker.row import Row

log = structlog.get_logger()

# Text that continues a prompt is decoded with so many of its last tokens: a tokenizer joins
# tokens differently at the start of a text.
_TAIL_TOKENS = 8

_ROW_FAILED = "The model failed on this request: its log has the reason under the request id."


@dataclass(slots=True, eq=False)
class _Live:
    """A job with a row or more, and what is known of them together."""

    job: Job
    started_s: float
    waiting: deque[tuple[int, RowRequest]]
    rows: dict[int, Row] = field(default_factory=dict)
    first_token_s: float | None = None
    started: RowStarted | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Batch:
    """First come, first served: a job's rows are admitted in order, and no job passes another.

    ``outputs`` collects what became final; the caller takes it. Every job that was added gets
    exactly one end in it, unless the engine breaks. An exception of the engine that concerns
    one row fails its job; others are passed on.
    """

    def __init__(self, max_places: int) -> None:
        self._max_places = max_places
        self._waiting: deque[Job] = deque()
        self._live: dict[int, _Live] = {}
        self._job_of: dict[int, _Live] = {}
        self._filling: _Live | None = None
        self._places: dict[int, int] = {}
        self.outputs: list[JobOutput] = []

    @property
    def rows(self) -> int:
        """How many rows the engine has."""
        return len(self._job_of)

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits, or is to be taken."""
        return bool(self._live or self._waiting or self.outputs)

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def admit(self, engine: Engine) -> None:
        """Give the engine the rows that it has room for now."""
        while engine.can_admit():
            live = self._filling
            if live is None:
                if not self._waiting:
                    return
                job = self._waiting[0]
                if not self._fits(job.rows[0]):
                    return
                self._waiting.popleft()
                live = _Live(job, time.monotonic(), deque(enumerate(job.rows)))
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
        for started in result.started:
            if (live := self._job_of.get(started.row_id)) is not None:
                try:
                    self._started(engine, live, started)
                except Exception as error:
                    self._fail(engine, live, error)
        for drafts in result.drafts:
            if (live := self._job_of.get(drafts.row_id)) is not None:
                live.drafted_tokens += drafts.drafted_tokens
                live.accepted_tokens += drafts.accepted_tokens
        for row_id, token, scores in result.tokens:
            live = self._job_of.get(row_id)
            if live is None:
                continue  # It ended with an earlier token of this step.
            if live.first_token_s is None:
                live.first_token_s = now
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
            job = next((job for job in self._waiting if job.job_id == job_id), None)
            if job is None:
                return  # It ended by itself while the cancellation was under way.
            where, request_id = "queued", job.request_id
            self._waiting.remove(job)
        log.info(
            "stream.cancelled",
            request_id=request_id,
            where=where,
            step_at_cancel=step_at_cancel,
            step_when_freed=step,
        )
        self.outputs.append(JobCancelled(job_id))

    def _fits(self, row: RowRequest) -> bool:
        return sum(self._places.values()) + row.places <= self._max_places

    def _begin(self, engine: Engine, live: _Live, index: int, row: RowRequest) -> None:
        # Before its place is taken: a request whose row can't even be made must not keep one.
        live.rows[row.row_id] = self._make_row(engine, live.job, index)
        self._job_of[row.row_id] = live
        self._places[row.row_id] = row.places
        engine.admit(row)

    def _make_row(self, engine: Engine, job: Job, index: int) -> Row:
        rules = job.rules
        continues = rules.make_parser is None and not rules.echo
        tail = job.rows[0].prompt[-_TAIL_TOKENS:] if continues else ()
        detokenizer = engine.detokenizer(rules.make_parser is not None, tail)
        return Row(job, index, detokenizer, engine.token_bytes)

    def _started(self, engine: Engine, live: _Live, started: RowStarted) -> None:
        if live.started is None:
            live.started = started
        # The answers of a beam search begin when they are found.
        if live.job.rules.echo and live.job.rows[0].beam is None:
            self._echo(engine, live.job, live.rows[started.row_id], started)

    def _echo(self, engine: Engine, job: Job, row: Row, started: RowStarted | None) -> None:
        prompt = job.rows[0].prompt
        entries: list[TokenLogprob] = []
        if job.rules.logprobs and started is not None:
            scores: list[TokenScores | None] = [None, *started.prompt_scores]
            entries = [
                describe(token, score, engine.token_bytes)
                for token, score in zip(prompt, scores, strict=True)
            ]
        row.echo(entries, list(prompt), self.outputs)

    def _found(
        self,
        engine: Engine,
        live: _Live,
        row_id: int,
        hypotheses: Sequence[Hypothesis],
        now: float,
    ) -> None:
        live.first_token_s = live.first_token_s or now
        live.rows.pop(row_id)
        self._forget(row_id)
        try:
            for index, hypothesis in enumerate(hypotheses[: live.job.answers]):
                row = self._make_row(engine, live.job, index)
                if live.job.rules.echo:
                    self._echo(engine, live.job, row, live.started)
                unknown: Sequence[TokenScores | None] = [None] * len(hypothesis.tokens)
                scores = hypothesis.scores or unknown
                for token, score in zip(hypothesis.tokens, scores, strict=True):
                    if row.advance(token, score, self.outputs):
                        break
                else:
                    row.finish(self.outputs)
                live.completion_tokens += row.tokens
                live.reasoning_tokens += row.reasoning_tokens
            # A grammar may allow fewer answers than were asked for: the others are empty.
            for index in range(len(hypotheses), live.job.answers):
                self._make_row(engine, live.job, index).finish(self.outputs)
        except Exception as error:
            self._fail(engine, live, error)
        else:
            self._finish(live, now)

    def _row_ended(self, engine: Engine, live: _Live, row_id: int, row: Row, now: float) -> None:
        engine.remove(row_id)
        self._forget(row_id)
        del live.rows[row_id]
        live.completion_tokens += row.tokens
        live.reasoning_tokens += row.reasoning_tokens
        if not live.rows and not live.waiting:
            self._finish(live, now)

    def _finish(self, live: _Live, now: float) -> None:
        job = live.job
        del self._live[job.job_id]
        first_s = now if live.first_token_s is None else live.first_token_s
        self.outputs.append(
            JobFinished(
                job.job_id,
                Usage(
                    len(job.rows[0].prompt),
                    live.completion_tokens,
                    live.started.cached_tokens if live.started else 0,
                    live.reasoning_tokens,
                ),
                Timings(
                    queue_s=live.started_s - job.arrived_s,
                    prefill_s=first_s - live.started_s,
                    decode_s=now - first_s,
                    drafted_tokens=live.drafted_tokens,
                    accepted_tokens=live.accepted_tokens,
                ),
            )
        )

    def _fail(self, engine: Engine, live: _Live, error: Exception) -> None:
        log.error("row.failed", request_id=live.job.request_id, exc_info=error)
        self._drop(engine, live)
        self.outputs.append(JobFailed(live.job.job_id, ErrorCode.ENGINE_ERROR, _ROW_FAILED))

    def _drop(self, engine: Engine, live: _Live) -> None:
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
