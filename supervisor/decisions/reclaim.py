"""Decides whether the memory of ended workers came back. This module is pure.

The sum of what the machine has available and what lmx's workers hold stays the same when a worker
ends, whatever the other workers do meanwhile: memory moves from one to the other. What the sum
loses did not come back. Other programs change the sum too, so that small losses do not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmx.protocol.messages.status import ReturnedMemory
from lmx.supervisor.decisions.ledger import format_bytes

MIN_MISSING_BYTES: Final = 512 * 1024**2
"""A loss below this does not count: other programs take and free as much."""

MIN_MISSING_PART: Final = 4
"""Nor does a loss count that is below one part in this many of what the worker held."""

DEADLINE_S: Final = 5.0
"""How long the memory may take to come back. The system needs a second or two to tear down the
pages of a large process."""

_DEADLINE_STEP_BYTES: Final = 50 * 1024**3
"""It may take a second longer for each of these steps: 373 GB took a Mac up to 4.1 s."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What lmx can have of the memory at one moment."""

    attainable_bytes: int
    """What the machine has available, and what lmx's workers hold."""
    wired_slack_bytes: int | None = None
    """What lmx's workers may have wired, less what is wired on the whole machine; None if that is
    unknown. Only differences of this value mean something."""


@dataclass(frozen=True, slots=True)
class ExitedWorker:
    """A worker that has ended."""

    instance: str
    model_id: str
    held_bytes: int
    """What it held lately of the memory that was reserved for it."""
    before: Balance
    """The balance before its end."""
    exited_at_s: float
    missing_bytes: int | None = None
    """What was last reported as missing of it. None while its memory is still waited for."""
    footprint_bytes: int = 0
    """All memory that it held lately."""
    begun_at_s: float = 0.0
    """When it was asked to end, or ended by itself."""

    def returned(self, now_s: float) -> ReturnedMemory:
        """Return how much of its memory has come back."""
        missing_bytes = self.missing_bytes or 0
        returned_bytes = max(0, self.footprint_bytes - missing_bytes)
        took_s = round(max(0.0, now_s - self.begun_at_s), 3)
        detail = f"{format_bytes(returned_bytes)} came back in {took_s:.1f} s"
        if missing_bytes:
            detail += f", {format_bytes(missing_bytes)} did not"
        elif not returned_bytes:
            detail = "it ended before its memory was measured"
        return ReturnedMemory(
            returned_bytes=returned_bytes, missing_bytes=missing_bytes, took_s=took_s, detail=detail
        )


def deadline_s(held_bytes: int) -> float:
    """Return how long ``held_bytes`` may take to come back."""
    return DEADLINE_S + held_bytes // _DEADLINE_STEP_BYTES


def threshold_bytes(held_bytes: int) -> int:
    """Return how much may be missing of ``held_bytes`` without being counted as missing."""
    return max(MIN_MISSING_BYTES, held_bytes // MIN_MISSING_PART)


def judge(exited_workers: Sequence[ExitedWorker], now: Balance, now_s: float) -> list[ExitedWorker]:
    """Judge each exited worker, the oldest first. Returns the workers with ``missing_bytes`` as it
    is reported now. It has changed if it is reported for the first time, or has become less."""
    lost = _shared_out(exited_workers, now)
    return [
        _judge_one(exited, lost_bytes, now_s)
        for exited, lost_bytes in zip(exited_workers, lost, strict=True)
    ]


def _judge_one(exited: ExitedWorker, lost_bytes: int, now_s: float) -> ExitedWorker:
    reported_bytes = exited.missing_bytes
    if reported_bytes is None:
        if lost_bytes > 0 and now_s - exited.exited_at_s < deadline_s(exited.held_bytes):
            return exited
    elif lost_bytes > 0 and reported_bytes - lost_bytes < MIN_MISSING_BYTES:
        return exited
    return replace(exited, missing_bytes=lost_bytes)


def _shared_out(exited_workers: Sequence[ExitedWorker], now: Balance) -> list[int]:
    """Return what is missing of each worker. A loss shows in the figures of all workers that ended
    before it. So the latest workers are charged first, and each byte is charged once."""
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
    """Return how much the balance has lost. Memory of an ended process that does not come back
    stays wired. A loss that is not wired too is another program's: on a busy Linux machine 600 MiB
    more or less were seen within seconds."""
    loss_bytes = before.attainable_bytes - now.attainable_bytes
    if before.wired_slack_bytes is None or now.wired_slack_bytes is None:
        return loss_bytes
    return min(loss_bytes, before.wired_slack_bytes - now.wired_slack_bytes)
