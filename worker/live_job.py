"""A job that has begun, and what is known of its answers together. Engine thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lmx.protocol.data import Timings, Usage
from lmx.worker.engine import RowDrafts, RowRequest, RowStarted
from lmx.worker.jobs import Job, JobFinished
from lmx.worker.row import Row


@dataclass(slots=True, eq=False)
class LiveJob:
    """``waiting``: its rows that have not begun, with their places among its answers."""

    job: Job
    started_s: float
    waiting: deque[tuple[int, RowRequest]]
    rows: dict[int, Row] = field(default_factory=dict)
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
        """Count tokens that were guessed ahead."""
        self._drafted_tokens += drafts.drafted_tokens
        self._accepted_tokens += drafts.accepted_tokens

    def count(self, row: Row) -> None:
        """Count the tokens of an answer that has ended."""
        self._completion_tokens += row.tokens
        self._reasoning_tokens += row.reasoning_tokens

    def finished(self, now: float) -> JobFinished:
        """Return its end, once all its answers have been counted."""
        job = self.job
        first_s = now if self.first_token_s is None else self.first_token_s
        return JobFinished(
            job.job_id,
            Usage(
                len(job.rows[0].prompt),
                self._completion_tokens,
                self.started.cached_tokens if self.started else 0,
                self._reasoning_tokens,
            ),
            Timings(
                queue_s=self.started_s - job.arrived_s,
                prefill_s=first_s - self.started_s,
                decode_s=now - first_s,
                drafted_tokens=self._drafted_tokens,
                accepted_tokens=self._accepted_tokens,
            ),
        )
