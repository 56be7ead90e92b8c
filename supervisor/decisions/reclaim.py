"""Whether the memory of ended workers came back. Pure.

What the machine has left and what lmx's workers hold, added up, stays the same when a worker
ends, whatever the others do meanwhile: it moves from one to the other. What that sum lost did
not come back. Other programs move it too, so small losses do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmx.supervisor.decisions.ledger import format_bytes

MIN_MISSING_BYTES: Final = 512 * 1024**2
"""Less than that is what other programs come and go with."""

MIN_MISSING_PART: Final = 4
"""And so is less than one part in so many of what the worker held."""

DEADLINE_S: Final = 5.0
"""To tear down the pages of a large process takes a second or two."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What lmx can have, in bytes, at one moment: ``attainable_bytes``: available, and what its
    workers hold. ``wired_slack_bytes``: what its workers may have wired less what is wired on the
    whole machine, None where that is unknown; only its differences mean something."""

    attainable_bytes: int
    wired_slack_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExitedWorker:
    """A worker that ended. ``held_bytes``: what it held lately of what was reserved for it.
    ``before``: as it was before its end. ``missing_bytes``: what was told of it, None while it is
    waited for. ``footprint_bytes``: all that it held lately. ``begun_at_s``: when it was sent to
    its end, or ended by itself."""

    instance: str
    model_id: str
    held_bytes: int
    before: Balance
    exited_at_s: float
    missing_bytes: int | None = None
    footprint_bytes: int = 0
    begun_at_s: float = 0.0

    def returned(self, now_s: float) -> Returned:
        """Return what has come back of it."""
        missing_bytes = self.missing_bytes or 0
        returned_bytes = max(0, self.footprint_bytes - missing_bytes)
        return Returned(returned_bytes, missing_bytes, max(0.0, now_s - self.begun_at_s))


@dataclass(frozen=True, slots=True)
class Returned:
    """What came back of an ended worker's memory, measured, ``took_s`` after it was sent to its
    end."""

    returned_bytes: int
    missing_bytes: int
    took_s: float

    @property
    def words(self) -> str:
        """It, for people."""
        if not (self.returned_bytes or self.missing_bytes):
            return "it ended before its memory was measured"
        back = f"{format_bytes(self.returned_bytes)} came back in {self.took_s:.1f} s"
        if not self.missing_bytes:
            return back
        return f"{back}, {format_bytes(self.missing_bytes)} did not"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing new to tell of this worker."""


@dataclass(frozen=True, slots=True)
class Settled:
    """So much of its memory is missing: for the first time, or less than was told before. With
    0 all of it is back."""

    missing_bytes: int


Verdict = Waiting | Settled


def threshold_bytes(held_bytes: int) -> int:
    """Return how much may be missing of what was held without being counted."""
    return max(MIN_MISSING_BYTES, held_bytes // MIN_MISSING_PART)


def judge(
    exited_workers: Sequence[ExitedWorker], now: Balance, now_s: float
) -> list[tuple[ExitedWorker, Verdict]]:
    """Judge each exited worker, oldest first; those returned know what was told of them."""
    lost = _shared_out(exited_workers, now)
    return [
        _judge_one(exited, lost_bytes, now_s)
        for exited, lost_bytes in zip(exited_workers, lost, strict=True)
    ]


def _judge_one(exited: ExitedWorker, lost_bytes: int, now_s: float) -> tuple[ExitedWorker, Verdict]:
    told_bytes = exited.missing_bytes
    if told_bytes is None:
        if lost_bytes > 0 and now_s - exited.exited_at_s < DEADLINE_S:
            return exited, Waiting()
    elif lost_bytes > 0 and told_bytes - lost_bytes < MIN_MISSING_BYTES:
        return exited, Waiting()
    return replace(exited, missing_bytes=lost_bytes), Settled(lost_bytes)


def _shared_out(exited_workers: Sequence[ExitedWorker], now: Balance) -> list[int]:
    """Return what is missing of each. A loss since an early end shows in all later figures that
    were taken before it: the latest exited_workers are charged first, and each byte once."""
    charged_bytes = 0
    shares: list[int] = []
    for exited in reversed(exited_workers):
        unexplained_bytes = _loss_bytes(exited.before, now) - charged_bytes
        share_bytes = max(0, min(unexplained_bytes, exited.held_bytes))
        if share_bytes <= threshold_bytes(exited.held_bytes):
            share_bytes = 0
        charged_bytes += share_bytes
        shares.append(share_bytes)
    return shares[::-1]


def _loss_bytes(before: Balance, now: Balance) -> int:
    """What does not come back of an ended process stays wired: a loss that is not wired too is
    another program's (seen on a busy Linux machine: 600 MiB more or less within seconds)."""
    loss_bytes = before.attainable_bytes - now.attainable_bytes
    if before.wired_slack_bytes is None or now.wired_slack_bytes is None:
        return loss_bytes
    return min(loss_bytes, before.wired_slack_bytes - now.wired_slack_bytes)
