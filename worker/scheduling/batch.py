"""The requests that wait and the rows that run: it admits rows, steps them, and cancels requests.
Engine thread.

A request's rows share one :class:`RunningRequest`. :class:`Batch` decides which request is next;
the engine decides nothing about order.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import (
    BACKGROUND_PRIORITY,
    Delta,
    Reread,
    Timings,
    TokenLogprob,
    Usage,
)
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import DeltaKind
from lmx.worker.engine.interfaces import Generator
from lmx.worker.engine.values import (
    DraftCounts,
    Hypothesis,
    PrefillFinished,
    PromptMedia,
    RereadPrompt,
    SequenceRequest,
    StepOutput,
    TokenScores,
)
from lmx.worker.scheduling.choice import PIECE_TOKENS, Choice
from lmx.worker.scheduling.compute_shares import ComputeShares
from lmx.worker.scheduling.engine_errors import is_device_failure, is_out_of_memory
from lmx.worker.scheduling.fair_queue import FairQueue
from lmx.worker.scheduling.kv_admission import KvAdmission
from lmx.worker.scheduling.logprobs import describe_prompt
from lmx.worker.scheduling.requests import (
    EngineRequest,
    MediaReleased,
    MediaWanted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestOutput,
)


class MediaState(Enum):
    """Where the media of a request's prompt are."""

    HERE = "here"
    """In its rows; or it has none."""
    RELEASED = "released"
    """All its rows have read them."""
    WANTED = "wanted"
    """They are being encoded again, because it was preempted."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request of which a row has begun."""

    request: EngineRequest
    started_s: float
    waiting: deque[tuple[int, SequenceRequest]]
    """Its sequences that have not begun, or will come back, with the numbers of their choices."""
    choices: dict[int, Choice] = field(default_factory=dict)
    """The choices whose sequences the engine has, by sequence."""
    preempted: dict[int, Choice] = field(default_factory=dict)
    """The choices whose sequences will come back."""
    preempted_s: float | None = None
    """Since when it waits to come back because the machine's memory was short. None: it does not
    wait for that, or one of its rows has come back."""
    preemptions: int = 0
    """How often it was preempted because the machine's memory was short."""
    read: set[int] = field(default_factory=set)
    """The rows whose prompts have been read, and echoed if the request wants that."""
    reading: set[int] = field(default_factory=set)
    """The rows whose prompts the engine has not read since it got them."""
    media: MediaState = MediaState.HERE
    first_token_s: float | None = None
    started: PrefillFinished | None = None
    reread: Reread | None = None
    compute_s: float = 0.0
    """The part of the engine's time that its rows had which have ended."""
    cached_tokens: int | None = None
    """How much of the prompt was stored when a row began to read it first. What the request has
    stored itself, to come back after it was preempted, is none of that. None: no row of its own has
    read it."""
    _completion_tokens: int = 0
    _reasoning_tokens: int = 0
    _drafted_tokens: int = 0
    _accepted_tokens: int = 0

    def drafted(self, drafts: DraftCounts) -> None:
        """Count the tokens that were drafted."""
        self._drafted_tokens += drafts.drafted_tokens
        self._accepted_tokens += drafts.accepted_tokens

    def count(self, choice: Choice) -> None:
        """Count the tokens of an answer that has ended."""
        self._completion_tokens += choice.tokens
        self._reasoning_tokens += choice.reasoning_tokens

    def finished(self, now: float) -> RequestFinished:
        """Return the request's end, once all its answers have been counted."""
        request = self.request
        first_s = now if self.first_token_s is None else self.first_token_s
        media = request.sequences[0].media
        cached_tokens = self.cached_tokens
        if cached_tokens is None:
            cached_tokens = self.started.cached_tokens if self.started else 0
        return RequestFinished(
            request.run_id,
            Usage(
                len(request.sequences[0].prompt),
                self._completion_tokens,
                cached_tokens,
                self._reasoning_tokens,
                image_tokens=media.image_tokens if media else 0,
                audio_tokens=media.audio_tokens if media else 0,
                video_tokens=media.video_tokens if media else 0,
            ),
            Timings(
                queue_s=self.started_s - request.arrived_s,
                prefill_s=first_s - self.started_s,
                decode_s=now - first_s,
                drafted_tokens=self._drafted_tokens,
                accepted_tokens=self._accepted_tokens,
            ),
            self.reread,
            self.compute_s,
        )


# Text that continues a prompt is decoded with this many of its last tokens: a tokenizer joins
# tokens differently at the start of a text.
_TAIL_TOKENS: Final = 8


def begin_choice(generator: Generator, request: EngineRequest, index: int) -> Choice:
    """Return the choice that turns a sequence's tokens into text."""
    rules = request.rules
    tail = request.sequences[0].prompt[-_TAIL_TOKENS:] if rules.continues else ()
    detokenizer = generator.detokenizer(rules.make_parser is not None, tail)
    return Choice(request, index, detokenizer, generator.token_bytes)


def echo_prompt(
    generator: Generator,
    request: EngineRequest,
    choice: Choice,
    started: PrefillFinished | None,
    out: list[RequestOutput],
) -> None:
    """Begin an answer with its prompt, and with the prompt's logprobs if the request wants them.

    Special tokens in the prompt are text, as the client wrote them; only those that the tokenizer
    puts before a text are not.
    """
    prompt = request.sequences[0].prompt
    added = _added(generator, prompt, request.rules.prompt)
    entries: list[TokenLogprob] = []
    if request.rules.logprobs and started is not None:
        top = request.sequences[0].top_logprobs or 0
        entries = describe_prompt(prompt, started.prompt_scores, top, generator.token_bytes)
    entries[:added] = [replace(entry, token=b"") for entry in entries[:added]]
    choice.echo(entries, list(prompt), added, generator.detokenizer(False, special=True), out)


def show_prompt(
    generator: Generator, request: EngineRequest, started: PrefillFinished, out: list[RequestOutput]
) -> None:
    """Output the logprobs of the prompt in addition to the answers, if the request wants that."""
    top = request.rules.prompt_logprobs
    if top is None:
        return
    prompt = request.sequences[0].prompt
    entries = describe_prompt(prompt, started.prompt_scores, top, generator.token_bytes)
    for start in range(0, len(entries), PIECE_TOKENS):
        part = tuple(entries[start : start + PIECE_TOKENS])
        out.append(Delta(request.run_id, "", 0, 0, DeltaKind.PROMPT, logprobs=part))


_SHOWN_CHARACTERS: Final = 60
"""Enough to recognize the line that has changed."""


def describe_reread(generator: Generator, found: RereadPrompt, *, shown: bool) -> Reread:
    """Return why a prompt was read again, with texts if they are to be ``shown``."""

    def text(tokens: Sequence[int]) -> str:
        detokenizer = generator.detokenizer(False, special=True)
        # What stands for media is no token of the model.
        return "".join(detokenizer.add(token) for token in tokens if token >= 0) + (
            detokenizer.flush()
        )

    known = Reread(found.reason, found.position, found.expected_tokens)
    if not shown:
        return known
    return replace(
        known,
        before=text(found.before)[-_SHOWN_CHARACTERS:],
        was=text(found.was)[:_SHOWN_CHARACTERS],
        now=text(found.now)[:_SHOWN_CHARACTERS],
    )


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
    generator: Generator,
    running: RunningRequest,
    hypotheses: Sequence[Hypothesis],
    out: list[RequestOutput],
) -> None:
    """Output all answers of a beam search, from their beginning to their end."""
    request = running.request
    for index, hypothesis in enumerate(hypotheses[: request.answers]):
        choice = begin_choice(generator, request, index)
        if request.rules.echo:
            echo_prompt(generator, request, choice, running.started, out)
        unknown: Sequence[TokenScores | None] = [None] * len(hypothesis.tokens)
        scores = hypothesis.scores or unknown
        for token, score in zip(hypothesis.tokens, scores, strict=True):
            if choice.advance(token, score, out):
                break
        else:
            choice.finish(out)
        running.count(choice)
    # A grammar may allow fewer answers than the request wants: the others are empty.
    for index in range(len(hypotheses), request.answers):
        begin_choice(generator, request, index).finish(out)


log = structlog.get_logger()

_MAX_PREEMPTIONS: Final = 3
"""A request that was preempted this often does not come back: if memory is short again and again,
it is too short for this request."""

_MEMORY_IS_SHORT: Final = "the machine's memory is short"
_CACHES_ARE_FULL: Final = "the KV caches would have taken more than their limit"
_PLACE_IS_NEEDED: Final = "it belongs to the background, and another request needs its place"

_NOT_BEGUN = "The model's worker broke on another request before it began with this one: try again."
_ROW_FAILED = "The model failed on this request: its log has the reason under the request id."
_TOO_LARGE = (
    "There was not enough memory for this request: send a shorter one, or ask for fewer tokens "
    "or answers."
)
_RAN_OUT_OF_MEMORY = (
    "The machine's memory ran out, and this was the largest of the requests that ran: try again "
    "later, with a shorter prompt or for fewer tokens or answers."
)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a batch."""

    max_places: int
    """How many rows may run at a time; a beam search counts with its width."""
    max_queue_s: float
    """How long a request may wait for its first row."""
    kv_cache_bytes: int | None = None
    """What the KV caches of all rows may take. None: they are not counted."""
    kv_layers: Sequence[KvLayers] = ()
    """What each layer keeps of a sequence."""


class Batch:
    """Requests of a lower priority value come first. Among those of the same value the owners of
    requests take turns, and each owner's requests are served in the order of arrival. A request's
    rows are admitted in order, and no request passes the one whose turn it is, however small it is.
    A request that was preempted comes back before others of its priority value begin, unless its
    media have to be encoded again: while they are, others begin, also of the background. Otherwise
    requests of the background begin while there is no other, and stand still in the engine as soon
    as one comes. If their place or their memory is all that it lacks, as many as it takes give
    their rows back, and come back when no other is left.

    ``outputs`` collects final output; the caller takes it. Every request that was added gets
    exactly one end in it, unless the engine breaks. An exception of the engine that concerns one
    row fails its request; other exceptions are passed on, and so is a failure of the device,
    wherever it shows: it may have spoiled every row. While the batch is ``paused``, a row begins
    only when no other row runs.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._kv = KvAdmission(limits.kv_layers, limits.kv_cache_bytes)
        self._waiting: FairQueue[EngineRequest] = FairQueue()
        self._oldest_s = math.inf
        """No request that waits arrived before."""
        self._running: dict[int, RunningRequest] = {}
        self._background: dict[int, RunningRequest] = {}
        """Those of the background among them: most steps are without, and look at none."""
        self._request_of: dict[int, RunningRequest] = {}
        self._unfilled: list[RunningRequest] = []
        self._places: dict[int, int] = {}
        self._searching: set[int] = set()
        self._shares = {False: ComputeShares(), True: ComputeShares()}
        """Those of the rows that are none of the background, and of those that are."""
        self.outputs: list[RequestOutput] = []
        self.urgent = False
        """Whether an output should be delivered at once, such as a request's first token or an
        answer's end. The caller resets it."""
        self.paused = False
        self.preempted_total = 0
        """How many times a request was preempted, to come back later."""

    @property
    def rows(self) -> int:
        """How many rows the engine has."""
        return len(self._request_of)

    @property
    def requests(self) -> int:
        """How many requests have rows."""
        return sum(bool(one.choices) for one in self._running.values())

    @property
    def kv_bytes(self) -> int:
        """The estimate for the KV caches of all rows."""
        return self._kv.total_bytes

    @property
    def busy(self) -> bool:
        """Whether there is something to do: a row runs, a request waits, or there is output."""
        return bool(
            self._request_of
            or self._waiting
            or self.outputs
            or any(running.media is not MediaState.WANTED for running in self._unfilled)
        )

    @property
    def wants_media(self) -> bool:
        """Whether a request waits for its media."""
        return any(running.media is MediaState.WANTED for running in self._unfilled)

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._waiting.add(request.owner, request, request.priority)
        self._oldest_s = min(self._oldest_s, request.waits_since_s)

    def expire(self, now: float) -> None:
        """Fail the requests that have waited too long for their first row, or to come back."""
        limit_s = self._limits.max_queue_s
        for request in self._take_late(now - limit_s):
            message = (
                f"The request waited {now - request.waits_since_s:.0f} s for its turn, and the "
                f"limit is {limit_s:g} s (max_queue_s): nothing was made. Try again when the model "
                "has less to do."
            )
            self.outputs.append(RequestFailed(request.run_id, ErrorCode.QUEUE_TIMEOUT, message))
        for running in list(self._unfilled):
            if running.preempted_s is not None and (
                now - running.preempted_s >= limit_s
                or (self.paused and _waited_too_long(running.request, running.preempted_s, now))
            ):
                self._unfilled.remove(running)
                self._end_running(running)
                self._fail_for_memory(running)
        if not self.paused:
            return
        for request in self._waiting.remove_if(
            lambda one: _waited_too_long(one, one.waits_since_s, now)
        ):
            message = (
                "The machine is short of memory, and the request waited "
                f"{now - request.waits_since_s:.0f} s for it to get better: nothing was made. It "
                "waits no longer than for a model that is to be loaded (server.load_wait_s). Try "
                "again later."
            )
            self.outputs.append(
                RequestFailed(request.run_id, ErrorCode.INSUFFICIENT_MEMORY, message)
            )

    def _take_late(self, before_s: float) -> list[EngineRequest]:
        """Remove and return the requests whose waiting began before a time. One with media may
        come here long after others that arrived later."""
        if self._oldest_s > before_s:
            return []
        self._oldest_s = math.inf

        def is_late(one: EngineRequest) -> bool:
            if one.waits_since_s <= before_s:
                return True
            self._oldest_s = min(self._oldest_s, one.waits_since_s)
            return False

        return self._waiting.remove_if(is_late)

    def fail_waiting(self) -> None:
        """Fail the requests that have no row: the engine broke, and not because of them."""
        for request in self._waiting.remove_if(lambda _: True):
            self.outputs.append(RequestFailed(request.run_id, ErrorCode.WORKER_LOST, _NOT_BEGUN))

    def admit(self, generator: Generator) -> None:
        """Give the engine the rows that it can take now."""
        only_foreground = self._has_foreground()
        while True:
            # The request that began first comes back first, so that later ones don't keep it out.
            running = min(
                (
                    one
                    for one in self._unfilled
                    if one.media is not MediaState.WANTED
                    and not (only_foreground and _is_background(one.request))
                ),
                key=lambda one: (one.request.priority, one.started_s),
                default=None,
            )
            if running is None or (
                self._waiting and self._waiting.peek().priority < running.request.priority
            ):
                if not self._waiting:
                    return
                if only_foreground and _is_background(self._waiting.peek()):
                    return
                if not self._has_room(generator, self._waiting.peek().sequences[0]):
                    return
                request = self._waiting.pop()
                sequences = deque(enumerate(request.sequences))
                running = RunningRequest(request, time.monotonic(), sequences)
                self._running[request.run_id] = running
                if _is_background(request):
                    self._background[request.run_id] = running
                self._unfilled.append(running)
            index, row = running.waiting[0]
            if not self._has_room(generator, row):
                return
            if running.request.run_id not in self._running:
                continue  # It has failed by what was drawn before.
            if running.media is MediaState.RELEASED:
                running.media = MediaState.WANTED
                self.outputs.append(MediaWanted(running.request.run_id))
                self.urgent = True
                continue
            running.waiting.popleft()
            if not running.waiting:
                self._unfilled.remove(running)
            try:
                self._begin(generator, running, index, row)
            except Exception as error:
                self._fail(generator, running, error)

    def _has_foreground(self) -> bool:
        """Return whether a request that does not belong to the background runs, or waits for
        anything but its media."""
        without_media = sum(
            one.media is MediaState.WANTED and not _is_background(one.request)
            for one in self._unfilled
        )
        return len(self._running) - without_media > len(self._background) or (
            bool(self._waiting) and not _is_background(self._waiting.peek())
        )

    def _has_room(self, generator: Generator, row: SequenceRequest) -> bool:
        """Return whether a row can begin now. For one that is none of the background, those of the
        background are preempted, if that is enough."""
        while True:
            if self._fits(row):
                if generator.can_admit():
                    return True
                if self._has_foreground_rows:
                    return False
            if row.background or not self._fits(row, self._preemptible()):
                return False
            if not self._preempt_background(generator):
                return False

    def _preemptible(self) -> Set[int]:
        """Return the rows of the background that can give their places back."""
        rows = {row for running in self._background.values() for row in running.choices}
        return rows - self._searching

    def _preempt_background(self, generator: Generator) -> bool:
        """Let a request of the background give its rows back, the newest first, and come back later
        with what it has made. Return whether that has changed anything. A beam search keeps its
        rows."""
        if not any(running.choices for running in self._background.values()):
            return False
        before = self.rows
        self._process(generator, generator.flush())
        if self.rows < before:
            return True
        return any(
            self._preempt(generator, running, _PLACE_IS_NEEDED)
            for running in reversed(self._background.values())
            if running.choices
        )

    def restore(self, generator: Generator, run_id: int, media: PromptMedia) -> None:
        """Restore the media that a request has asked for; one that has ended is left alone."""
        running = self._running.get(run_id)
        if running is None:
            return
        held = running.request.sequences[0].media
        assert held is not None and running.media is MediaState.WANTED
        try:
            held.restore(media)
        except ValueError as error:
            self._fail(generator, running, error)
        else:
            running.media = MediaState.HERE

    def step(
        self, generator: Generator, interrupted: Callable[[], bool] = lambda: False
    ) -> StepOutput:
        """Advance every row; return the engine's output. ``interrupted`` is for
        :meth:`lmx.worker.engine.interfaces.Generator.step`."""
        began_s = time.monotonic()
        held = self._has_foreground_rows
        result = generator.step(interrupted)
        reader = None if result.read is None else self._request_of.get(result.read)
        if reader is not None and reader.cached_tokens is None:
            reader.cached_tokens = result.cached_tokens
        is_background = not held if reader is None else _is_background(reader.request)
        self._shares[is_background].add(time.monotonic() - began_s, result.read)
        self._process(generator, result)
        while self._kv.exceeded and self._preempt_for_kv(generator):
            pass
        return result

    def _process(self, generator: Generator, result: StepOutput) -> None:
        """Hand the engine's output to the choices."""
        for _, reason in result.failed:
            # Before any token of this step is shown: it may be garbage.
            if is_device_failure(reason):
                raise reason
        now = time.monotonic()
        if result.search_tokens:
            held = self._has_foreground_rows
            for sequence_id in self._searching:  # Each of them, by a token.
                if not (held and _is_background(self._request_of[sequence_id].request)):
                    self._kv.advance(sequence_id)
        for started in result.started:
            if (running := self._request_of.get(started.sequence_id)) is not None:
                try:
                    self._started(generator, running, started, now)
                except Exception as error:
                    self._fail(generator, running, error)
        for drafts in result.drafts:
            if (running := self._request_of.get(drafts.sequence_id)) is not None:
                running.drafted(drafts)
        for sequence_id, token, scores in result.tokens:
            running = self._request_of.get(sequence_id)
            if running is None:
                continue  # It ended with an earlier token of this step.
            if running.first_token_s is None:
                running.first_token_s = now
                self.urgent = True
            self._kv.advance(sequence_id)
            choice = running.choices[sequence_id]
            try:
                ended = choice.advance(token, scores, self.outputs)
            except Exception as error:
                self._fail(generator, running, error)
                continue
            if ended:
                self.urgent = True
                self._choice_ended(generator, running, sequence_id, choice, now)
        for sequence_id, hypotheses in result.found:
            if (running := self._request_of.get(sequence_id)) is not None:
                self._found(generator, running, sequence_id, hypotheses, now)
        for sequence_id, reason in result.failed:
            if (running := self._request_of.get(sequence_id)) is not None:
                self._fail(generator, running, reason)

    def cancel(self, generator: Generator, run_id: int, step_at_cancel: int, step: int) -> None:
        """End a request wherever it is; one that has ended already is left alone."""
        running = self._running.get(run_id)
        if running is not None:
            where = "prefill" if running.first_token_s is None else "decode"
            request_id = running.request.request_id
            self._drop(generator, running)
        else:
            waiting = self._waiting.remove_if(lambda one: one.run_id == run_id)
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
        self.outputs.append(RequestCancelled(run_id))

    def preempt_largest(self, generator: Generator, now: float) -> None:
        """Let the newest of the largest running requests of the highest priority value give its
        memory back and come back later. Does nothing if none runs.

        The request fails instead if that would be useless: its only row runs alone and would begin
        again at once; it has come back often enough; or the engine can't let it come back.
        """
        self._process(generator, generator.flush())
        candidates = self._least_important()
        if not candidates:
            return
        running = candidates[0]
        may_return = len(self._request_of) > 1 and running.preemptions < _MAX_PREEMPTIONS
        if may_return and self._preempt(generator, running, _MEMORY_IS_SHORT, logging.WARNING):
            running.preempted_s = now
            running.preemptions += 1
            return
        kv_bytes, tokens = self._kv.size(running.choices)
        log.warning(
            "row.aborted",
            request_id=running.request.request_id,
            kv_bytes=kv_bytes,
            tokens=tokens,
            reason=_MEMORY_IS_SHORT,
        )
        self._drop(generator, running)
        self._fail_for_memory(running)

    def _preempt_for_kv(self, generator: Generator) -> bool:
        """Let a request give its memory back and come back later, because the rows have outgrown
        the limit of the KV caches. Return whether that has changed anything.

        No request fails for this. It comes back when there is memory for it, at the latest when the
        others have ended, however long that takes. A row that runs alone stays, and so do beam
        searches: they grow past the limit.
        """
        if len(self._request_of) < 2 or self._searching.issuperset(self._request_of):
            return False
        self._process(generator, generator.flush())
        if not self._kv.exceeded:
            return True
        return any(
            self._preempt(generator, running, _CACHES_ARE_FULL)
            for running in self._least_important()
            if running.request.sequences[0].beam is None
        )

    def _least_important(self) -> list[RunningRequest]:
        """Return the requests that run: first those of the highest priority value, of these the
        largest, of equal ones the newest."""
        newest_first = [running for running in reversed(self._running.values()) if running.choices]
        return sorted(
            newest_first,
            key=lambda one: (
                -one.request.priority,
                *(-size for size in self._kv.size(one.choices)),
            ),
        )

    @property
    def _has_foreground_rows(self) -> bool:
        """Whether the engine has a row that is none of the background."""
        if not self._background:
            return bool(self._request_of)
        return any(not _is_background(one.request) for one in self._request_of.values())

    def _preempt(
        self,
        generator: Generator,
        running: RunningRequest,
        reason: str,
        level: int = logging.INFO,
    ) -> bool:
        """Remove all rows of a request from the engine, to come back later with the tokens that
        they have made. The engine has been flushed: for a row whose next token is drawn already, a
        recurrent state could not be used again, because it is that after all of the tokens.

        Returns whether that has changed anything: if no row can come back, the caller handles the
        request. One of which only some rows can fails here, because the others are lost.
        """
        kv_bytes, tokens = self._kv.size(running.choices)
        back: list[tuple[int, SequenceRequest]] = []
        for sequence_id, choice in list(running.choices.items()):
            made = generator.preempt(sequence_id)
            if made is None and not back:
                return False
            if made is None:
                for _, resumed in back:
                    self._forget(resumed.sequence_id)
                    del running.choices[resumed.sequence_id]
                log.error(
                    "row.preemption_failed", request_id=running.request.request_id, lost=len(back)
                )
                self._drop(generator, running)
                self._fail_for_memory(running)
                return True
            asked = running.request.sequences[choice.index]
            resumed = replace(
                asked,
                prompt=[*asked.prompt, *made],
                max_tokens=asked.max_tokens - len(made),
                generated_tokens=len(made),
            )
            back.append((choice.index, resumed))
        for sequence_id in running.choices:
            self._forget(sequence_id)
        running.preempted |= running.choices
        running.choices.clear()
        running.reading.clear()
        running.waiting.extendleft(reversed(back))
        if running not in self._unfilled:
            self._unfilled.append(running)
        self.preempted_total += 1
        log.log(
            level,
            "row.preempted",
            request_id=running.request.request_id,
            kv_bytes=kv_bytes,
            tokens=tokens,
            reason=reason,
        )
        return True

    def _fail_for_memory(self, running: RunningRequest) -> None:
        end = RequestFailed(
            running.request.run_id, ErrorCode.INSUFFICIENT_MEMORY, _RAN_OUT_OF_MEMORY
        )
        self.outputs.append(end)

    def _fits(self, row: SequenceRequest, without: Set[int] = frozenset()) -> bool:
        if self.paused and self._request_of.keys() - without:
            return False
        taken = sum(places for one, places in self._places.items() if one not in without)
        return taken + row.places <= self._limits.max_places and self._kv.fits(row, without)

    def _begin(
        self, generator: Generator, running: RunningRequest, index: int, row: SequenceRequest
    ) -> None:
        # This comes before the place is taken: a request whose row can't be made must not keep a
        # place.
        choice = running.preempted.pop(row.sequence_id, None) or begin_choice(
            generator, running.request, index
        )
        running.choices[row.sequence_id] = choice
        running.reading.add(row.sequence_id)
        running.preempted_s = None
        self._request_of[row.sequence_id] = running
        self._places[row.sequence_id] = row.places
        self._kv.begin(row)
        if running.started is not None and row.prompt_logprobs is not None:
            # An earlier row of the request has scored the prompt.
            row = replace(row, prompt_logprobs=None)
        generator.admit(row)

    def _started(
        self, generator: Generator, running: RunningRequest, started: PrefillFinished, now: float
    ) -> None:
        running.reading.discard(started.sequence_id)
        self._shares[_is_background(running.request)].decodes(started.sequence_id)
        self._release_media(running)
        if started.sequence_id in running.read:
            return  # It was preempted, and has come back.
        running.read.add(started.sequence_id)
        if running.started is None:
            running.started = started
            show_prompt(generator, running.request, started, self.outputs)
            if started.reread is not None:
                shown = running.request.rules.show_reread
                running.reread = describe_reread(generator, started.reread, shown=shown)
        if running.request.sequences[0].beam is not None:
            self._searching.add(started.sequence_id)
            # A beam search shows no token before its end, but it makes tokens from here on.
            running.first_token_s = now
            return
        # The answers of a beam search begin when they are found.
        choice = running.choices[started.sequence_id]
        if running.request.rules.echo:
            echo_prompt(generator, running.request, choice, running.started, self.outputs)
        if running.request.sequences[0].max_tokens == 0:
            choice.finish(self.outputs)
            self._choice_ended(generator, running, started.sequence_id, choice, now)

    def _release_media(self, running: RunningRequest) -> None:
        """Give back what only prompts need, once every row of a request has read its own."""
        media = running.request.sequences[0].media
        if media is not None and not running.reading and not running.waiting:
            media.release()
            running.media = MediaState.RELEASED
            self.outputs.append(MediaReleased(running.request.run_id))

    def _found(
        self,
        generator: Generator,
        running: RunningRequest,
        sequence_id: int,
        hypotheses: Sequence[Hypothesis],
        now: float,
    ) -> None:
        running.choices.pop(sequence_id)
        self._forget(sequence_id)
        try:
            emit_hypotheses(generator, running, hypotheses, self.outputs)
        except Exception as error:
            self._fail(generator, running, error)
        else:
            self._finish(running, now)

    def _choice_ended(
        self,
        generator: Generator,
        running: RunningRequest,
        sequence_id: int,
        choice: Choice,
        now: float,
    ) -> None:
        generator.remove(sequence_id)
        self._forget(sequence_id)
        del running.choices[sequence_id]
        running.count(choice)
        if not running.choices and not running.waiting:
            self._finish(running, now)

    def _finish(self, running: RunningRequest, now: float) -> None:
        self._end_running(running)
        self.outputs.append(running.finished(now))

    def _fail(self, generator: Generator, running: RunningRequest, error: Exception) -> None:
        if is_device_failure(error):
            raise error
        log.error("row.failed", request_id=running.request.request_id, exc_info=error)
        self._drop(generator, running)
        code, message = ErrorCode.ENGINE_ERROR, _ROW_FAILED
        if isinstance(error, LmxError):
            code, message = error.code, error.message
        if is_out_of_memory(error):
            code, message = ErrorCode.INSUFFICIENT_MEMORY, _TOO_LARGE
        self.outputs.append(RequestFailed(running.request.run_id, code, message))

    def _drop(self, generator: Generator, running: RunningRequest) -> None:
        for sequence_id in running.choices:
            generator.remove(sequence_id)
            self._forget(sequence_id)
        running.choices.clear()
        if running in self._unfilled:
            self._unfilled.remove(running)
        self._end_running(running)

    def _end_running(self, running: RunningRequest) -> None:
        del self._running[running.request.run_id]
        self._background.pop(running.request.run_id, None)

    def _forget(self, sequence_id: int) -> None:
        if (running := self._request_of.pop(sequence_id, None)) is not None:
            running.compute_s += self._shares[_is_background(running.request)].end(sequence_id)
        self._places.pop(sequence_id, None)
        self._searching.discard(sequence_id)
        self._kv.end(sequence_id)


def _is_background(request: EngineRequest) -> bool:
    return request.priority >= BACKGROUND_PRIORITY


def _waited_too_long(request: EngineRequest, since_s: float, now: float) -> bool:
    return request.memory_wait_s is not None and now - since_s >= request.memory_wait_s
