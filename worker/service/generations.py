"""Generations, from their requests to their ends. Event loop only.

They pass through the prompt thread, which prepares them, and the engine thread, which runs it. This
module does not know how either does its work.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.data import (
    Accepted,
    ChoiceEnded,
    Delta,
    Failed,
    Finished,
    Generate,
    Reread,
)
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import DeltaKind
from lmx.worker.engine.interfaces import Engine, Generator
from lmx.worker.engine.values import PromptMedia, wrong_kind
from lmx.worker.scheduling.answer_review import AnswerReview
from lmx.worker.scheduling.best_of import Ranking
from lmx.worker.scheduling.engine_errors import is_out_of_memory
from lmx.worker.scheduling.prepare import encode_prompt, prepare
from lmx.worker.scheduling.requests import (
    ChoiceFinished,
    EngineRequest,
    MediaReleased,
    MediaWanted,
    RequestEnd,
    RequestFailed,
    RequestFinished,
    RequestOutput,
)
from lmx.worker.scheduling.thread import EngineThread
from lmx.worker.service.admission import IdleClock, LifetimeCounts, Power
from lmx.worker.service.open_requests import OpenRequest, OpenRequests
from lmx.worker.service.stream import Outgoing, RouterOutputs, Stream

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Generation(OpenRequest):
    """A request for an answer, until its end has been sent."""

    request: Generate
    generations: Generations
    run_id: int
    stream: Stream
    ranking: Ranking | None
    """Holds the answers back if only some of them are returned."""
    preparing: bool = True
    """Whether its prompt is still being made."""
    review: AnswerReview | None = None
    """Checks the whole answers, if the request needs that."""
    lost_compute_s: float = 0.0
    """The part of the engine's time that the answers took which were made once more."""

    def release(self) -> None:
        """Wait no longer for its outputs."""
        self.generations.released(self)

    def cancelled(self) -> None:
        """Free its rows before the next step."""
        self.generations.cancelled(self)

    def fail(self, code: ErrorCode, message: str) -> None:
        """Send the output that waits, and then the error."""
        self.generations.fail(self, code, message)

    def prepared(self, engine_request: EngineRequest) -> None:
        """Note that its prompt was made and that it waits for the engine."""
        if engine_request.check is not None or engine_request.call_checks:
            self.review = AnswerReview(
                engine_request.check,
                engine_request.call_checks,
                hold_text=self.request.whole and not self.request.search.beam,
            )

    def retry(self, run_id: int, compute_s: float) -> None:
        """Forget its answers, which took ``compute_s``, because new ones are made."""
        assert self.review is not None
        self.run_id = run_id
        self.lost_compute_s = compute_s
        self.review = self.review.retry()
        self.ranking = _ranking(self.request)

    def send_reviewed(self, part: RouterOutputs) -> None:
        """Add the output that was held back for a review, which found no fault, to ``part``."""
        assert self.review is not None
        for item in self.review.held():
            self._emit(item, part)

    def receive(self, output: Delta | ChoiceFinished, part: RouterOutputs) -> None:
        """Add the part of ``output``, and of earlier output, that may be sent now to ``part``."""
        if self.ranking is None and self.review is None:
            self._emit(output, part)
            return
        if isinstance(output, Delta) and output.kind is DeltaKind.PROMPT:
            # It is no part of an answer, so it waits for no other answer and for no review.
            self._emit(output, part)
            return
        for item in (output,) if self.ranking is None else self.ranking.add(output):
            if self.review is None:
                self._emit(item, part)
            else:
                for reviewed in self.review.receive(item):
                    self._emit(reviewed, part)

    def flush(self, part: RouterOutputs) -> None:
        """Add all waiting output of every answer, because the stream was lost."""
        for index in range(self.request.search.n):
            part.deltas += self.stream.end(index)

    def _emit(self, item: Delta | ChoiceFinished, part: RouterOutputs) -> None:
        if isinstance(item, ChoiceFinished):
            part.deltas += self.stream.end(item.choice)
            part.ended.append(
                ChoiceEnded(self.request.stream_id, item.choice, item.reason, item.stop)
            )
        # Tokens without text are counted in the usage; an empty delta has no reader.
        elif item.text or item.call or item.logprobs or item.token_ids:
            delta = self.stream.add(item)
            if delta is not None:
                part.deltas.append(delta)

    def log_end(self, end: RequestFinished | RequestFailed) -> None:
        """Log how the generation ended."""
        request_id = self.request.request_id
        match end:
            case RequestFinished(_, usage, timings, reread, _):
                log.info(
                    "stream.finished",
                    request_id=request_id,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                    completion_tokens=usage.completion_tokens,
                    queue_s=round(timings.queue_s, 4),
                    prefill_s=round(timings.prefill_s, 4),
                    decode_s=round(timings.decode_s, 4),
                    **_logged(reread),
                )
            case RequestFailed(_, code, _):
                log.warning("stream.failed", request_id=request_id, code=code)

    def log_cancelled(self, step: int) -> None:
        """Log that the generation was cancelled before the engine thread had it."""
        log.info(
            "stream.cancelled",
            request_id=self.request.request_id,
            where="queued",
            step_at_cancel=step,
            step_when_freed=step,
        )


class Generations:
    """Passes generations through the prompt and the engine thread, and sends the text back."""

    def __init__(
        self,
        spec: WorkerSpec,
        engine: Engine,
        thread: EngineThread,
        open_requests: OpenRequests,
        counts: LifetimeCounts,
        idle_clock: IdleClock,
        power: Power,
    ) -> None:
        self._spec = spec
        self._generator, self._facts = engine.generator, engine.facts
        self._thread = thread
        self._open = open_requests
        self._counts = counts
        self._idle_clock = idle_clock
        self._power = power
        self._by_run: dict[int, Generation] = {}
        self._run_ids = itertools.count(1)
        self._sequence_ids = itertools.count(1)

    def submit(self, router: bytes, request: Generate, blobs: Sequence[bytes] = ()) -> None:
        """Begin a generation, or refuse it. ``blobs`` are the bytes of its media."""
        if not self._open.admits(router, request, blobs, self._thread.rows):
            return
        stream = Stream(request.stream_id, request.credit_deltas)
        run_id = next(self._run_ids)
        opened = Generation(router, request, self, run_id, stream, _ranking(request))
        arrived_s = time.monotonic()
        self._open.begin(
            opened,
            lambda: self._prepare(opened, arrived_s),
            lambda future: self._prepared(opened, future),
            blobs,
            decodes=bool(request.media),
        )

    def credit(self, router: bytes, stream_id: int, deltas: int) -> None:
        """Give a stream credit; one that has ended is ignored."""
        opened = self._open.find(router, stream_id)
        granted = opened.stream.grant(deltas) if isinstance(opened, Generation) else []
        if granted:
            outgoing = Outgoing()
            outgoing.to(router).deltas += granted
            outgoing.send(self._open.send)

    def released(self, opened: Generation) -> None:
        """Wait no longer for the engine's output for this generation."""
        self._by_run.pop(opened.run_id, None)

    def cancelled(self, opened: Generation) -> None:
        """Free its rows before the next step."""
        if not opened.preparing:
            self._idle_clock.ended(opened.request.keep_alive_s, time.monotonic())
            self._thread.cancel(opened.run_id)

    def fail(self, opened: Generation, code: ErrorCode, message: str) -> None:
        """End the generation with an error, without waiting for its rows."""
        if opened.preparing:
            self._open.refuse(opened, code, message)
        else:
            self._thread.cancel(opened.run_id)
            self._end_alone(opened, RequestFailed(opened.run_id, code, message))

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Send final output, in one message for each router."""
        outgoing = Outgoing()
        for output in outputs:
            if isinstance(output, Delta):
                self._counts.tokens += output.tokens
            elif isinstance(output, RequestEnd):
                self._thread.clock.end()
            # A request that was cancelled is not in the table any more.
            opened = self._by_run.get(output.stream_id)
            if opened is None:
                continue
            match output:
                case Delta() | ChoiceFinished():
                    opened.receive(output, outgoing.to(opened.router))
                case MediaReleased():
                    self._open.hold(opened, 0)
                case MediaWanted():
                    self._restore_media(opened)
                case RequestFinished() if opened.review is not None:
                    self._review(opened, opened.review, output)
                case RequestFinished() | RequestFailed():
                    self._end(opened, output, outgoing.to(opened.router))
        outgoing.send(self._open.send)
        self._open.report_if_idle()

    def _prepare(
        self, opened: Generation, arrived_s: float, *, is_retry: bool = False
    ) -> EngineRequest:
        # This runs on the prompt thread.
        media, opened.media = opened.media, ()
        return prepare(
            self._writer,
            self._facts,
            self._spec,
            opened.request,
            opened.run_id,
            self._sequence_ids.__next__,
            arrived_s,
            media,
            decode_s=opened.decode_s,
            is_retry=is_retry,
        )

    def _encode_media(self, opened: Generation) -> PromptMedia | None:
        # This runs on the prompt thread.
        media, opened.media = opened.media, ()
        return encode_prompt(self._writer, self._facts, self._spec, opened.request, media).media

    @property
    def _writer(self) -> Generator:
        if self._generator is None:
            raise wrong_kind(self._spec.kind)
        return self._generator

    def _prepared(self, opened: Generation, future: asyncio.Future[EngineRequest | None]) -> None:
        error = future.exception()
        opened.preparing = False
        if opened.gone:
            opened.log_cancelled(self._thread.steps)
        elif error is None and (engine_request := future.result()) is not None:
            self._submit(opened, engine_request)
            opened.prepared(engine_request)
            self._counts.requests += 1
            queued = max(0, self._thread.clock.in_flight - self._spec.max_rows)
            self._open.send(
                opened.router,
                Accepted(
                    opened.request.stream_id,
                    len(engine_request.sequences[0].prompt),
                    queued,
                    engine_request.remarks,
                    tuple(engine_request.sequences[0].prompt) if opened.request.token_ids else (),
                    engine_request.ignored,
                ),
            )
        else:
            self._refuse(opened, error)
        self._open.report_if_idle()

    def _submit(self, opened: Generation, engine_request: EngineRequest) -> None:
        media = engine_request.sequences[0].media
        self._open.hold(opened, media.size_bytes if media is not None else 0)
        self._by_run[opened.run_id] = opened
        self._thread.submit(engine_request)

    def _restore_media(self, opened: Generation, *, may_retry: bool = True) -> None:
        """Decode and encode the media of a request that was preempted, and has released them. It
        has begun, so that it does not expire. What was decoded once fails for want of time or
        memory: with ``may_retry`` it is tried once more."""
        self._open.note_restoring(opened, True)
        self._open.queue(
            opened,
            lambda: self._encode_media(opened),
            lambda future: self._media_restored(opened, future, may_retry=may_retry),
            decodes=True,
            expires=False,
        )

    def _media_restored(
        self, opened: Generation, future: asyncio.Future[PromptMedia | None], *, may_retry: bool
    ) -> None:
        self._open.note_restoring(opened, False)
        error = future.exception()
        media = None if error else future.result()
        if opened.gone:
            pass
        elif media is not None:
            self._open.hold(opened, media.size_bytes)
            self._thread.restore_media(opened.run_id, media)
        elif may_retry:
            log.warning(
                "media.restore_retried", request_id=opened.request.request_id, reason=str(error)
            )
            self._restore_media(opened, may_retry=False)
        else:
            log.error("media.restore_failed", request_id=opened.request.request_id, exc_info=error)
            self.fail(opened, *_explained(error, "The media could not be read again"))
        self._open.report_if_idle()

    def _review(self, opened: Generation, review: AnswerReview, end: RequestFinished) -> None:
        """Check whole answers before their ends are sent."""
        del self._by_run[opened.run_id]
        # The engine has given its media back. If the answer is made once more, it needs the media
        # thread, which must not wait for this very request.
        self._open.hold(opened, 0)
        self._open.review(
            opened, review.fault, lambda future: self._reviewed(opened, review, end, future)
        )

    def _reviewed(
        self,
        opened: Generation,
        review: AnswerReview,
        end: RequestFinished,
        future: asyncio.Future[str | None],
    ) -> None:
        error = future.exception()
        if opened.gone:
            pass
        elif error is not None:
            log.error("review.failed", request_id=opened.request.request_id, exc_info=error)
            message = "The answer could not be checked; see the log."
            self._end_alone(opened, RequestFailed(opened.run_id, ErrorCode.INTERNAL, message))
        elif (fault := future.result()) is None:
            self._end_alone(opened, end)
        elif review.may_retry:
            log.info("review.retried", request_id=opened.request.request_id, reason=fault)
            opened.retry(next(self._run_ids), end.compute_s)
            self._counts.drafted(end.timings)
            # It waits for a new turn: the time that the first answer took does not count as
            # waiting.
            arrived_s = time.monotonic()
            self._open.queue(
                opened,
                lambda: self._prepare(opened, arrived_s, is_retry=True),
                lambda future: self._retry_prepared(opened, future),
                decodes=bool(opened.request.media),
            )
        else:
            self._counts.drafted(end.timings)
            twice = " twice" if review.is_retry else ""
            message = (
                f"The model's answer was no good{twice}: {fault}. Ask again with another prompt, "
                "or with a schema that is easier to satisfy."
            )
            code = ErrorCode.SCHEMA_NOT_MET
            self._end_alone(opened, RequestFailed(opened.run_id, code, message))
        self._open.report_if_idle()

    def _retry_prepared(
        self, opened: Generation, future: asyncio.Future[EngineRequest | None]
    ) -> None:
        error = future.exception()
        engine_request = None if error else future.result()
        if opened.gone:
            pass
        elif engine_request is not None:
            self._submit(opened, engine_request)
        else:
            log.error("prompt.failed", request_id=opened.request.request_id, exc_info=error)
            why = _explained(error, "The prompt could not be made once more")
            self._end_alone(opened, RequestFailed(opened.run_id, *why))
        self._open.report_if_idle()

    def _end_alone(self, opened: Generation, end: RequestFinished | RequestFailed) -> None:
        outgoing = Outgoing()
        part = outgoing.to(opened.router)
        if isinstance(end, RequestFinished):
            opened.send_reviewed(part)
        self._end(opened, end, part)
        outgoing.send(self._open.send)

    def _refuse(self, opened: Generation, error: BaseException | None) -> None:
        if isinstance(error, RequestError | UnavailableError):
            self._open.refuse(opened, error.code, error.message, error.param, error.retry_after_s)
            return
        log.error("prompt.failed", request_id=opened.request.request_id, exc_info=error)
        self._open.refuse(opened, *_explained(error, "The prompt could not be made"))

    def _end(
        self, opened: Generation, end: RequestFinished | RequestFailed, part: RouterOutputs
    ) -> None:
        stream_id = opened.request.stream_id
        self._open.forget(opened)
        self._idle_clock.ended(opened.request.keep_alive_s, time.monotonic())
        match end:
            case RequestFinished(_, usage, timings, reread, compute_s):
                joules = self._power.joules(opened.lost_compute_s + compute_s)
                timings = replace(timings, energy_joules=joules)
                self._open.estimate.ended(timings.prefill_s + timings.decode_s)
                self._counts.finished(usage, timings)
                remarks = () if opened.review is None else opened.review.remarks
                part.finished.append(Finished(stream_id, usage, timings, remarks, reread))
            case RequestFailed(_, code, message):
                opened.flush(part)
                part.failed.append(Failed(stream_id, code, message))
        opened.log_end(end)


def _ranking(request: Generate) -> Ranking | None:
    search = request.search
    ranked = not search.beam and search.best_of > search.n
    return Ranking(search.n, search.best_of) if ranked else None


def _logged(reread: Reread | None) -> dict[str, Any]:
    """Return what the log says of a prompt that was read again: none of its text."""
    if reread is None:
        return {}
    return {
        "reread": reread.reason.value,
        "reread_at": reread.position,
        "expected_cached_tokens": reread.expected_tokens,
    }


def _explained(error: BaseException | None, failure: str) -> tuple[ErrorCode, str]:
    """Return the code and the message of an error on the way to the engine."""
    if isinstance(error, RequestError | UnavailableError):
        return error.code, error.message
    if error is not None and is_out_of_memory(error):
        message = "There was not enough memory for this prompt: send a shorter one."
        return ErrorCode.INSUFFICIENT_MEMORY, message
    return ErrorCode.INTERNAL, f"{failure}; see the log."
