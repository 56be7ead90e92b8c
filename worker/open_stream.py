"""One stream of a worker: whose it is, and how its answers become messages. Event loop only."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from lmx.protocol.data import ChoiceEnded, Generate
from lmx.worker.answer_review import AnswerReview
from lmx.worker.jobs import AnswerEnded, Job, JobFailed, JobFinished, Piece
from lmx.worker.outgoing import RouterOutputs
from lmx.worker.ranking import Ranking
from lmx.worker.streams import Stream

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class OpenStream:
    """A request that was taken, until its end has been sent.

    ``preparing``: its prompt is being made. ``gone``: it was cancelled meanwhile. ``review``:
    where answers are checked when they are whole.
    """

    router: bytes
    job_id: int
    request: Generate
    stream: Stream
    ranking: Ranking | None
    preparing: bool = True
    gone: bool = False
    review: AnswerReview | None = None

    @classmethod
    def begin(cls, router: bytes, job_id: int, request: Generate) -> OpenStream:
        """Return a new one."""
        search = request.search
        ranked = not search.beam and search.best_of > search.n
        return cls(
            router,
            job_id,
            request,
            Stream(request.stream_id, request.credit_deltas),
            Ranking(search.n, search.best_of) if ranked else None,
        )

    def prepared(self, job: Job) -> None:
        """Its prompt has been made, and it waits for the engine."""
        self.preparing = False
        if job.check is not None or job.call_checks:
            self.review = AnswerReview(
                job.check,
                job.call_checks,
                whole=self.request.whole and not self.request.search.beam,
            )

    def repeat(self, job_id: int) -> None:
        """Forget what its answers were: others are made."""
        assert self.review is not None
        self.job_id = job_id
        self.review = self.review.next()
        if self.ranking is not None:
            self.ranking = Ranking(self.request.search.n, self.request.search.best_of)

    def release(self, part: RouterOutputs) -> None:
        """Add what was held back for a review, which has found nothing, to ``part``."""
        assert self.review is not None
        for item in self.review.held():
            self._give(item, part)

    def take(self, output: Piece | AnswerEnded, part: RouterOutputs) -> None:
        """Add what may be sent of ``output``, and of what waited for it, to ``part``."""
        for item in (output,) if self.ranking is None else self.ranking.add(output):
            if self.review is None:
                self._give(item, part)
            else:
                for reviewed in self.review.take(item):
                    self._give(reviewed, part)

    def flush(self, part: RouterOutputs) -> None:
        """Add all that waits, of every answer: the stream was lost."""
        for index in range(self.request.search.n):
            part.deltas += self.stream.end(index)

    def _give(self, item: Piece | AnswerEnded, part: RouterOutputs) -> None:
        if isinstance(item, AnswerEnded):
            part.deltas += self.stream.end(item.answer)
            part.ended.append(
                ChoiceEnded(self.request.stream_id, item.answer, item.reason, item.stop)
            )
        # Tokens without text are in the usage; nobody reads an empty delta.
        elif item.text or item.call or item.logprobs or item.token_ids:
            delta = self.stream.add(item)
            if delta is not None:
                part.deltas.append(delta)

    def log_end(self, end: JobFinished | JobFailed) -> None:
        """Log how it ended."""
        request_id = self.request.request_id
        match end:
            case JobFinished(_, usage, timings):
                log.info(
                    "stream.finished",
                    request_id=request_id,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                    completion_tokens=usage.completion_tokens,
                    queue_s=round(timings.queue_s, 4),
                    prefill_s=round(timings.prefill_s, 4),
                    decode_s=round(timings.decode_s, 4),
                )
            case JobFailed(_, code, _):
                log.warning("stream.failed", request_id=request_id, code=code)

    def log_cancelled(self, step: int) -> None:
        """Log that it was cancelled before it had a job."""
        log.info(
            "stream.cancelled",
            request_id=self.request.request_id,
            where="queued",
            step_at_cancel=step,
            step_when_freed=step,
        )
