"""One row on the engine thread: tokens in, final text and the reason of its end out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lmx.protocol.data import Timings, Usage
from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import FinishReason
from lmx.worker.engine import Detokenizer, RowRequest
from lmx.worker.stops import StopMatcher


@dataclass(frozen=True, slots=True)
class Job:
    """An accepted stream, as the engine thread gets it. ``arrived_s``: monotonic clock."""

    request_id: str
    row: RowRequest
    stop: tuple[str, ...]
    arrived_s: float


@dataclass(frozen=True, slots=True)
class RowFinished:
    """The row ended well."""

    reason: FinishReason
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class RowFailed:
    """The row was lost."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class RowCancelled:
    """The row was cancelled, and its place is free again."""


RowEnd = RowFinished | RowFailed | RowCancelled


class RowOutput(NamedTuple):
    """What became final in a row. A tuple: one is made for every token."""

    row_id: int
    text: str
    tokens: int
    end: RowEnd | None


class Row:
    """Decides what a row's tokens mean: text, EOS, a stop string, the limit.

    The EOS token counts nowhere and is never text. Text inside a possible stop string and
    bytes of an incomplete character wait; their tokens are counted with the text.
    """

    __slots__ = (
        "_completion_tokens",
        "_detokenizer",
        "_eos",
        "_first_token_s",
        "_prefill_s",
        "_stops",
        "_unreported_tokens",
        "job",
    )

    def __init__(self, job: Job, detokenizer: Detokenizer, eos: frozenset[int], now: float) -> None:
        self.job = job
        self._detokenizer = detokenizer
        self._eos = eos
        self._stops = StopMatcher(job.stop)
        self._prefill_s = now
        self._first_token_s: float | None = None
        self._completion_tokens = 0
        self._unreported_tokens = 0

    @property
    def decoding(self) -> bool:
        """Whether the first token has come; until then the row is in prefill."""
        return self._first_token_s is not None

    def advance(self, token: int, now: float) -> RowOutput | None:
        """Take the row's next token; return what became final, None when nothing did."""
        if self._first_token_s is None:
            self._first_token_s = now
        if token in self._eos:
            return self._finish(FinishReason.STOP, self._rest(), now)
        self._completion_tokens += 1
        self._unreported_tokens += 1
        text = self._stops.add(self._detokenizer.add(token))
        if self._stops.matched:
            return self._finish(FinishReason.STOP, text, now)
        if self._completion_tokens >= self.job.row.max_tokens:
            text += self._rest()
            # What was held back may have completed a stop string after all.
            reason = FinishReason.STOP if self._stops.matched else FinishReason.LENGTH
            return self._finish(reason, text, now)
        if not text:
            return None
        tokens, self._unreported_tokens = self._unreported_tokens, 0
        return RowOutput(self.job.row.row_id, text, tokens, None)

    def _rest(self) -> str:
        text = self._stops.add(self._detokenizer.flush())
        return text if self._stops.matched else text + self._stops.release()

    def _finish(self, reason: FinishReason, text: str, now: float) -> RowOutput:
        first_s = now if self._first_token_s is None else self._first_token_s
        row = self.job.row
        end = RowFinished(
            reason,
            Usage(len(row.prompt), self._completion_tokens),
            Timings(
                queue_s=self._prefill_s - self.job.arrived_s,
                prefill_s=first_s - self._prefill_s,
                decode_s=now - first_s,
            ),
        )
        return RowOutput(row.row_id, text, self._unreported_tokens, end)
