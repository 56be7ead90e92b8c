"""Ends a job that is under way, for its client or an operator."""

from __future__ import annotations

import asyncio
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.jobs.live import LiveRequest, LiveRequests
from lmx.router.jobs.records import JobRow
from lmx.router.jobs.store import JobStore

_ENDS_WITHIN_S: Final = 2.0
"""How long a reply waits for the end of a cancelled request. A client that reads slowly may delay
the end; the reply does not wait for it."""


async def cancel_job(listed: LiveRequests, store: JobStore, row: JobRow) -> None:
    """Cancel the job of a record that is under way, and wait for its end. It may have ended by
    itself just before. Raises JOB_RUNS_ELSEWHERE for a job of another router."""
    live = listed.get(row.id)
    if live is not None:
        live.cancel()
        await _ended(live)
    elif not store.is_own(row):
        raise RequestError(
            ErrorCode.JOB_RUNS_ELSEWHERE,
            f"The job {row.id} runs in another router process ({row.router_pid}), which ends with "
            "its last request. It can't be cancelled from here: wait for its end, or close its "
            "connection.",
        )


async def _ended(live: LiveRequest) -> None:
    try:
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await live.ended.wait()
    except TimeoutError:
        pass  # It is cancelled all the same, and shown so.
