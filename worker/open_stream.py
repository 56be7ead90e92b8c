"""One stream of a worker: whose it is, and how its answers become messages. Event loop only."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from lmx.protocol.data import ChoiceEnded, Generate
from lmx.worker.jobs import AnswerEnded, JobFailed, JobFinished, Piece
from lmx.worker.outgoing import RouterOutputs
from lmx.worker.ranking import Ranking
from lmx.worker.streams import Stream

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class OpenStream:
    """A request that was taken, until its end has been sent.

    ``preparing``: its prompt is being made. ``gone``: it was cancelled meanwhile.
    """

    router: bytes
    job_id: int
    request: Generate
    stream: Stream
    ranking: Ranking | None
    preparing: bool = True
    gone: bool = False

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

    def take(self, output: Piece | AnswerEnded, part: RouterOutputs) -> None:
        """Add what may be sent of ``output``, and of what waited for it, to ``part``."""
        for item in (output,) if self.ranking is None else self.ranking.add(output):
            if isinstance(item, Piece):
                # Tokens without text are in the usage; nobody reads an empty delta.
                if item.text or item.call or item.logprobs:
                    delta = self.stream.add(item)
                    if delta is not None:
                        part.deltas.append(delta)
            else:
                part.deltas += self.stream.end(item.answer)
                part.ended.append(
                    ChoiceEnded(self.request.stream_id, item.answer, item.reason, item.stop)
                )

    def flush(self, part: RouterOutputs) -> None:
        """Add all that waits, of every answer: the stream was lost."""
        for index in range(self.request.search.n):
            part.deltas += self.stream.end(index)

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
