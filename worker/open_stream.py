"""One stream of a worker: whose it is, and how its answers become messages. Event loop only."""

from __future__ import annotations

from dataclasses import dataclass

from lmx.protocol.data import ChoiceEnded, Generate
from lmx.worker.jobs import AnswerEnded, Piece
from lmx.worker.outgoing import RouterOutputs
from lmx.worker.ranking import Ranking
from lmx.worker.streams import Stream


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
