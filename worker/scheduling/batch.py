"""The jobs that wait and the rows that run: it admits rows, steps them, and cancels jobs. Engine
thread.

A job's rows share one :class:`LiveJob`. :class:`Batch` decides which job is next; the engine
decides nothing about order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import Delta, Timings, TokenLogprob, Usage
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import DeltaKind
from lmx.worker.engine.interfaces import Generator
from lmx.worker.engine.values import (
    Hypothesis,
    PromptMedia,
    RowDrafts,
    RowRequest,
    RowStarted,
    StepOutput,
    TokenScores,
)
from lmx.worker.scheduling.device_failure import is_device_failure
from lmx.worker.scheduling.fair_queue import FairQueue
from lmx.worker.scheduling.jobs import (
    Job,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobOutput,
    MediaReleased,
    MediaWanted,
)
from lmx.worker.scheduling.kv_admission import KvAdmission
from lmx.worker.scheduling.logprobs import describe_prompt
from lmx.worker.scheduling.out_of_memory import is_out_of_memory
from lmx.worker.scheduling.row import PIECE_TOKENS, Row


class MediaState(Enum):
    """Where the media of a job's prompt are."""

    HERE = "here"
    """In its rows; or it has none."""
    RELEASED = "released"
    """All its rows have read them."""
    WANTED = "wanted"
    """They are being encoded again, because it was preempted."""


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job of which a row has begun."""

    job: Job
    started_s: float
    waiting: deque[tuple[int, RowRequest]]
    """Its rows that have not begun, and those that will come back, with their places among its
    answers."""
    rows: dict[int, Row] = field(default_factory=dict)
    """The text of the rows that the engine has."""
    preempted: dict[int, Row] = field(default_factory=dict)
    """The text of the rows that will come back."""
    preempted_s: float | None = None
    """Since when it waits to come back because the machine's memory was short. None: it does not
    wait for that, or one of its rows has come back."""
    preemptions: int = 0
    """How often it had to give way because the machine's memory was short."""
    read: set[int] = field(default_factory=set)
    """The rows whose prompts have been read, and echoed if the request wants that."""
    reading: set[int] = field(default_factory=set)
    """The rows whose prompts the engine has not read since it got them."""
    media: MediaState = MediaState.HERE
    first_token_s: float | None = None
    started: RowStarted | None = None
    _completion_tokens: int = 0
    _reasoning_tokens: int = 0
    _drafted_tokens: int = 0
    _accepted_tokens: int = 0

    @classmethod
    def begin(cls, job: Job, now: float) -> LiveJob:
        """Return a new one."""
        return cls(job, now, deque(enumerate(job.rows)))

    def drafted(self, drafts: RowDrafts) -> None:
        """Count the tokens that were drafted."""
        self._drafted_tokens += drafts.drafted_tokens
        self._accepted_tokens += drafts.accepted_tokens

    def count(self, row: Row) -> None:
        """Count the tokens of an answer that has ended."""
        self._completion_tokens += row.tokens
        self._reasoning_tokens += row.reasoning_tokens

    def finished(self, now: float) -> JobFinished:
        """Return the job's end, once all its answers have been counted."""
        job = self.job
        first_s = now if self.first_token_s is None else self.first_token_s
        media = job.rows[0].media
        return JobFinished(
            job.job_id,
            Usage(
                len(job.rows[0].prompt),
                self._completion_tokens,
                self.started.cached_tokens if self.started else 0,
                self._reasoning_tokens,
                image_tokens=media.image_tokens if media else 0,
                audio_tokens=media.audio_tokens if media else 0,
                video_tokens=media.video_tokens if media else 0,
            ),
            Timings(
                queue_s=self.started_s - job.arrived_s,
                prefill_s=first_s - self.started_s,
                decode_s=now - first_s,
                drafted_tokens=self._drafted_tokens,
                accepted_tokens=self._accepted_tokens,
            ),
        )


# Text that continues a prompt is decoded with so many of its last tokens: a tokenizer joins
# tokens differently at the start of a text.
_TAIL_TOKENS: Final = 8


def begin_answer(generator: Generator, job: Job, index: int) -> Row:
    """Return the row that turns an answer's tokens into text."""
    rules = job.rules
    tail = job.rows[0].prompt[-_TAIL_TOKENS:] if rules.continues else ()
    detokenizer = generator.detokenizer(rules.make_parser is not None, tail)
    return Row(job, index, detokenizer, generator.token_bytes)


def echo_prompt(
    generator: Generator, job: Job, row: Row, started: RowStarted | None, out: list[JobOutput]
) -> None:
    """Begin an answer with its prompt, and with the prompt's logprobs if the request wants them.

    Special tokens in the prompt are text, as the client wrote them; only those that the tokenizer
    puts before a text are none.
    """
    prompt = job.rows[0].prompt
    added = _added(generator, prompt, job.rules.prompt)
    entries: list[TokenLogprob] = []
    if job.rules.logprobs and started is not None:
        top = job.rows[0].top_logprobs or 0
        entries = describe_prompt(prompt, started.prompt_scores, top, generator.token_bytes)
    entries[:added] = [replace(entry, token=b"") for entry in entries[:added]]
    row.echo(entries, list(prompt), added, generator.detokenizer(False, special=True), out)


def show_prompt(generator: Generator, job: Job, started: RowStarted, out: list[JobOutput]) -> None:
    """Output the logprobs of the prompt beside the answers, if the request wants that."""
    top = job.rules.prompt_logprobs
    if top is None:
        return
    prompt = job.rows[0].prompt
    entries = describe_prompt(prompt, started.prompt_scores, top, generator.token_bytes)
    for start in range(0, len(entries), PIECE_TOKENS):
        part = tuple(entries[start : start + PIECE_TOKENS])
        out.append(Delta(job.job_id, "", 0, 0, DeltaKind.PROMPT, logprobs=part))


def _added(generator: Generator, prompt: Sequence[int], text: str | None) -> int:
    """Return how many special tokens come before the first token of the text itself."""
    if text is None:
        return 0
    for place, token in enumerate(prompt):
        plain = generator.detokenizer(False)
        is_special = not plain.add(token) and not plain.flush()
        name = generator.token_bytes(token).decode(errors="replace")
        if not is_special or not name or text.startswith(name):
            return place
    return 0


def emit_hypotheses(
    generator: Generator, live: LiveJob, hypotheses: Sequence[Hypothesis], out: list[JobOutput]
) -> None:
    """Output all answers of a beam search, from their beginning to their end."""
    job = live.job
    for index, hypothesis in enumerate(hypotheses[: job.answers]):
        row = begin_answer(generator, job, index)
        if job.rules.echo:
            echo_prompt(generator, job, row, live.started, out)
        unknown: Sequence[TokenScores | None] = [None] * len(hypothesis.tokens)
        scores = hypothesis.scores or unknown
        for token, score in zip(hypothesis.tokens, scores, strict=True):
            if row.advance(token, score, out):
                break
        else:
            row.finish(out)
        live.count(row)
    # A grammar may allow fewer answers than the request wants: the others are empty.
    for index in range(len(hypotheses), job.answers):
        begin_answer(generator, job, index).finish(out)


log = structlog.get_logger()

_MOST_PREEMPTIONS: Final = 3
"""A job that had to give way this often does not come back: if memory is short again and again, it
is too short for this job."""

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
    """The limits of a batch."""

    max_places: int
    """How many rows may run at a time; a beam search counts with its width."""
    max_queue_s: float
    """How long a job may wait for its first row."""
    kv_cache_bytes: int | None = None
    """What the KV caches of all rows may take. None: they are not counted."""
    kv_layers: Sequence[KvLayers] = ()
    """What each layer keeps of a sequence."""


class Batch:
    """Jobs of a lower priority value come first. Among those of the same value the owners of jobs
    take turns, and each owner's jobs are served in the order of arrival. A job's rows are admitted
    in order, and no job passes the one whose turn it is, however small it is. A job that was
    preempted comes back before others of its priority value begin, unless its media have to be
    encoded again: while they are, others begin.

    ``outputs`` collects final output; the caller takes it. Every job that was added gets exactly
    one end in it, unless the engine breaks. An exception of the engine that concerns one row fails
    its job; other exceptions are passed on, and so is a failure of the device, wherever it shows:
    it may have spoiled every row. While the batch is ``paused``, a row begins only when no other
    row runs.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._kv = KvAdmission(limits.kv_layers, limits.kv_cache_bytes)
        self._waiting: FairQueue[Job] = FairQueue()
        self._live: dict[int, LiveJob] = {}
        self._job_of: dict[int, LiveJob] = {}
        self._unfilled: list[LiveJob] = []
        self._places: dict[int, int] = {}
        self._searching: set[int] = set()
        self.outputs: list[JobOutput] = []
        self.urgent = False
        """Whether an output should be delivered at once, such as a job's first token or an answer's
        end. The caller resets it."""
        self.paused = False
        self.preempted_total = 0
        """How many times a job had to give way to others, and was to come back."""

    @property
    def rows(self) -> int:
        """How many rows the engine has."""
        return len(self._job_of)

    @property
    def kv_bytes(self) -> int:
        """The estimate for the KV caches of all rows."""
        return self._kv.total_bytes

    @property
    def busy(self) -> bool:
        """Whether there is something to do: a row runs, a job waits for a place, or there is output
        to take."""
        return bool(
            self._job_of
            or self._waiting
            or self.outputs
            or any(live.media is not MediaState.WANTED for live in self._unfilled)
        )

    @property
    def wants_media(self) -> bool:
        """Whether a job waits for its media."""
        return any(live.media is MediaState.WANTED for live in self._unfilled)

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.add(job.owner, job, job.priority)

    def expire(self, now: float) -> None:
        """Fail the jobs that have waited too long for their first row, or to come back."""
        limit_s = self._limits.max_queue_s
        # The first job of each owner has waited the longest of that owner's: no job passes another.
        for job in self._waiting.take_first(lambda one: now - one.arrived_s >= limit_s):
            message = (
                f"The request waited {now - job.arrived_s:.0f} s for its turn, and the limit is "
                f"{limit_s:g} s (max_queue_s): nothing was made. Try again when the model has "
                "less to do."
            )
            self.outputs.append(JobFailed(job.job_id, ErrorCode.QUEUE_TIMEOUT, message))
        for live in list(self._unfilled):
            if live.preempted_s is not None and (
                now - live.preempted_s >= limit_s
                or (self.paused and _outwaited(live.job, live.preempted_s, now))
            ):
                self._unfilled.remove(live)
                del self._live[live.job.job_id]
                self._give_up(live)
        if not self.paused:
            return
        for job in self._waiting.take_out(lambda one: _outwaited(one, one.arrived_s, now)):
            message = (
                f"The machine is short of memory, and the request waited {now - job.arrived_s:.0f} "
                "s for it to get better: nothing was made. It waits no longer than for a model "
                "that is to be loaded (server.load_wait_s). Try again later."
            )
            self.outputs.append(JobFailed(job.job_id, ErrorCode.INSUFFICIENT_MEMORY, message))

    def give_up_waiting(self) -> None:
        """Fail the jobs that have no row: the engine is broken, and none of them has broken it."""
        for job in self._waiting.take_out(lambda _: True):
            self.outputs.append(JobFailed(job.job_id, ErrorCode.WORKER_LOST, _NOT_BEGUN))

    def admit(self, generator: Generator) -> None:
        """Give the engine the rows that it has room for now."""
        while generator.can_admit():
            # The job that began first comes back first, so that later ones don't keep it out.
            live = min(
                (one for one in self._unfilled if one.media is not MediaState.WANTED),
                key=lambda one: (one.job.priority, one.started_s),
                default=None,
            )
            if live is None or (
                self._waiting and self._waiting.peek().priority < live.job.priority
            ):
                if not self._waiting or not self._fits(self._waiting.peek().rows[0]):
                    return
                job = self._waiting.pop()
                live = LiveJob.begin(job, time.monotonic())
                self._live[job.job_id] = live
                self._unfilled.append(live)
            index, row = live.waiting[0]
            if not self._fits(row):
                return
            if live.media is MediaState.RELEASED:
                live.media = MediaState.WANTED
                self.outputs.append(MediaWanted(live.job.job_id))
                self.urgent = True
                continue
            live.waiting.popleft()
            if not live.waiting:
                self._unfilled.remove(live)
            try:
                self._begin(generator, live, index, row)
            except Exception as error:
                self._fail(generator, live, error)

    def restore(self, generator: Generator, job_id: int, media: PromptMedia) -> None:
        """Take the media that a job has asked for; one that has ended is left alone."""
        live = self._live.get(job_id)
        if live is None:
            return
        held = live.job.rows[0].media
        assert held is not None and live.media is MediaState.WANTED
        try:
            held.restore(media)
        except ValueError as error:
            self._fail(generator, live, error)
        else:
            live.media = MediaState.HERE

    def step(self, generator: Generator) -> StepOutput:
        """Advance every row; return the engine's output."""
        result = generator.step()
        self._take(generator, result)
        while self._kv.exceeded and self._make_room(generator):
            pass
        return result

    def _take(self, generator: Generator, result: StepOutput) -> None:
        """Give the rows what the engine has made."""
        for _, reason in result.failed:
            # Before any token of this step is shown: it may be garbage.
            if is_device_failure(reason):
                raise reason
        now = time.monotonic()
        if result.search_tokens:
            for row_id in self._searching:  # Each of them, by a token.
                self._kv.made(row_id)
        for started in result.started:
            if (live := self._job_of.get(started.row_id)) is not None:
                try:
                    self._started(generator, live, started, now)
                except Exception as error:
                    self._fail(generator, live, error)
        for drafts in result.drafts:
            if (live := self._job_of.get(drafts.row_id)) is not None:
                live.drafted(drafts)
        for row_id, token, scores in result.tokens:
            live = self._job_of.get(row_id)
            if live is None:
                continue  # It ended with an earlier token of this step.
            if live.first_token_s is None:
                live.first_token_s = now
                self.urgent = True
            self._kv.made(row_id)
            row = live.rows[row_id]
            try:
                ended = row.advance(token, scores, self.outputs)
            except Exception as error:
                self._fail(generator, live, error)
                continue
            if ended:
                self.urgent = True
                self._row_ended(generator, live, row_id, row, now)
        for row_id, hypotheses in result.found:
            if (live := self._job_of.get(row_id)) is not None:
                self._found(generator, live, row_id, hypotheses, now)
        for row_id, reason in result.failed:
            if (live := self._job_of.get(row_id)) is not None:
                self._fail(generator, live, reason)

    def cancel(self, generator: Generator, job_id: int, step_at_cancel: int, step: int) -> None:
        """End a job wherever it is; one that has ended already is left alone."""
        live = self._live.get(job_id)
        if live is not None:
            where = "prefill" if live.first_token_s is None else "decode"
            request_id = live.job.request_id
            self._drop(generator, live)
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

    def preempt_largest(self, generator: Generator, now: float) -> None:
        """Let the newest of the largest running jobs of the highest priority value give its memory
        back and come back later. Does nothing if none runs.

        The job fails instead if that would be useless: its only row runs alone and would begin
        again at once; it has come back often enough; or the engine can't let it come back.
        """
        self._take(generator, generator.flush())
        running = self._least_important()
        if not running:
            return
        live = running[0]
        kv_bytes, tokens = self._kv.size(live.rows)
        may_return = len(self._job_of) > 1 and live.preemptions < _MOST_PREEMPTIONS
        if may_return and self._preempt(generator, live):
            live.preempted_s = now
            live.preemptions += 1
            event = "row.preempted"
        else:
            event = "row.given_up"
            self._drop(generator, live)
            self._give_up(live)
        log.warning(event, request_id=live.job.request_id, kv_bytes=kv_bytes, tokens=tokens)

    def _make_room(self, generator: Generator) -> bool:
        """Let a job give its memory back and come back later, because the rows have outgrown the
        limit of the KV caches. Return whether that has changed anything.

        No job fails for this. It comes back when there is room, at the latest when the others have
        ended, however long that takes. A row that runs alone stays, and so do beam searches: they
        grow past the limit.
        """
        if len(self._job_of) < 2 or self._searching.issuperset(self._job_of):
            return False
        self._take(generator, generator.flush())
        if not self._kv.exceeded:
            return True
        for live in self._least_important():
            kv_bytes, tokens = self._kv.size(live.rows)
            if live.job.rows[0].beam is None and self._preempt(generator, live):
                log.info(
                    "row.preempted",
                    request_id=live.job.request_id,
                    kv_bytes=kv_bytes,
                    tokens=tokens,
                    reason="the KV caches would have taken more than their limit",
                )
                return True
        return False

    def _least_important(self) -> list[LiveJob]:
        """Return the jobs that run: first those of the highest priority value, of these the
        largest, of equal ones the newest."""
        newest_first = [live for live in reversed(self._live.values()) if live.rows]
        return sorted(
            newest_first,
            key=lambda one: (-one.job.priority, *(-size for size in self._kv.size(one.rows))),
        )

    def _preempt(self, generator: Generator, live: LiveJob) -> bool:
        """Remove all rows of a job from the engine, to come back later with the tokens that they
        have made. The engine has been flushed: for a row whose next token is drawn already, a
        recurrent state could not be used again, because it is that after all of the tokens.

        Returns whether that has changed anything: if no row can come back, the caller handles the
        job. One of which only some rows can fails here, because the others are lost.
        """
        back: list[tuple[int, RowRequest]] = []
        for row_id, row in list(live.rows.items()):
            made = generator.preempt(row_id)
            if made is None and not back:
                return False
            if made is None:
                for _, request in back:
                    self._forget(request.row_id)
                    del live.rows[request.row_id]
                log.error("row.not_preempted", request_id=live.job.request_id, lost=len(back))
                self._drop(generator, live)
                self._give_up(live)
                return True
            asked = live.job.rows[row.index]
            request = replace(
                asked,
                prompt=[*asked.prompt, *made],
                max_tokens=asked.max_tokens - len(made),
                made_tokens=len(made),
            )
            back.append((row.index, request))
        for row_id in live.rows:
            self._forget(row_id)
        live.preempted |= live.rows
        live.rows.clear()
        live.reading.clear()
        live.waiting.extendleft(reversed(back))
        if live not in self._unfilled:
            self._unfilled.append(live)
        self.preempted_total += 1
        return True

    def _give_up(self, live: LiveJob) -> None:
        end = JobFailed(live.job.job_id, ErrorCode.INSUFFICIENT_MEMORY, _GIVEN_UP)
        self.outputs.append(end)

    def _fits(self, row: RowRequest) -> bool:
        if self.paused and self._job_of:
            return False
        places = sum(self._places.values()) + row.places
        return places <= self._limits.max_places and self._kv.fits(row)

    def _begin(self, generator: Generator, live: LiveJob, index: int, row: RowRequest) -> None:
        # This comes before the place is taken: a request whose row can't be made must not keep a
        # place.
        answer = live.preempted.pop(row.row_id, None) or begin_answer(generator, live.job, index)
        live.rows[row.row_id] = answer
        live.reading.add(row.row_id)
        live.preempted_s = None
        self._job_of[row.row_id] = live
        self._places[row.row_id] = row.places
        self._kv.begin(row)
        if live.started is not None and row.prompt_logprobs is not None:
            # An earlier row of the job has scored the prompt.
            row = replace(row, prompt_logprobs=None)
        generator.admit(row)

    def _started(
        self, generator: Generator, live: LiveJob, started: RowStarted, now: float
    ) -> None:
        live.reading.discard(started.row_id)
        self._release_media(live)
        if started.row_id in live.read:
            return  # It was preempted, and has come back.
        live.read.add(started.row_id)
        if live.started is None:
            live.started = started
            show_prompt(generator, live.job, started, self.outputs)
        if live.job.rows[0].beam is not None:
            self._searching.add(started.row_id)
            # A beam search shows no token before its end, but it makes tokens from here on.
            live.first_token_s = now
            return
        # The answers of a beam search begin when they are found.
        row = live.rows[started.row_id]
        if live.job.rules.echo:
            echo_prompt(generator, live.job, row, live.started, self.outputs)
        if live.job.rows[0].max_tokens == 0:
            row.finish(self.outputs)
            self._row_ended(generator, live, started.row_id, row, now)

    def _release_media(self, live: LiveJob) -> None:
        """Give back what only prompts need, once every row of a job has read its own."""
        media = live.job.rows[0].media
        if media is not None and not live.reading and not live.waiting:
            media.release()
            live.media = MediaState.RELEASED
            self.outputs.append(MediaReleased(live.job.job_id))

    def _found(
        self,
        generator: Generator,
        live: LiveJob,
        row_id: int,
        hypotheses: Sequence[Hypothesis],
        now: float,
    ) -> None:
        live.rows.pop(row_id)
        self._forget(row_id)
        try:
            emit_hypotheses(generator, live, hypotheses, self.outputs)
        except Exception as error:
            self._fail(generator, live, error)
        else:
            self._finish(live, now)

    def _row_ended(
        self, generator: Generator, live: LiveJob, row_id: int, row: Row, now: float
    ) -> None:
        generator.remove(row_id)
        self._forget(row_id)
        del live.rows[row_id]
        live.count(row)
        if not live.rows and not live.waiting:
            self._finish(live, now)

    def _finish(self, live: LiveJob, now: float) -> None:
        del self._live[live.job.job_id]
        self.outputs.append(live.finished(now))

    def _fail(self, generator: Generator, live: LiveJob, error: Exception) -> None:
        if is_device_failure(error):
            raise error
        log.error("row.failed", request_id=live.job.request_id, exc_info=error)
        self._drop(generator, live)
        code, message = ErrorCode.ENGINE_ERROR, _ROW_FAILED
        if isinstance(error, LmxError):
            code, message = error.code, error.message
        if is_out_of_memory(error):
            code, message = ErrorCode.INSUFFICIENT_MEMORY, _TOO_LARGE
        self.outputs.append(JobFailed(live.job.job_id, code, message))

    def _drop(self, generator: Generator, live: LiveJob) -> None:
        for row_id in live.rows:
            generator.remove(row_id)
            self._forget(row_id)
        live.rows.clear()
        if live in self._unfilled:
            self._unfilled.remove(live)
        del self._live[live.job.job_id]

    def _forget(self, row_id: int) -> None:
        self._job_of.pop(row_id, None)
        self._places.pop(row_id, None)
        self._searching.discard(row_id)
        self._kv.end(row_id)


def _outwaited(job: Job, since_s: float, now: float) -> bool:
    return job.memory_wait_s is not None and now - since_s >= job.memory_wait_s
