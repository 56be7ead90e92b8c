"""A stream's beginning: what a client sees while its request waits for a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from lmx.router.sse import EventStream

QUIET_S: Final = 2.0
"""So long nothing is sent: most waits are over by then, and what fails so soon fails with its
own status, not within a stream."""

INTERVAL_S: Final = 1.0
"""Between two comments at least."""


@asynccontextmanager
async def telling(
    events: EventStream, news: Callable[[], str | None], ping_interval_s: float
) -> AsyncIterator[None]:
    """Open the stream and write comments while the block waits for a model.

    ``news`` gives the state and progress of what is waited for, None while nothing is: only
    where there are some is the stream opened. They are written when they change; without
    change a ping goes out each ``ping_interval_s``. After the block nothing is being written,
    and the stream is open or is not. Raises as writing does.
    """
    over = asyncio.Event()
    writer = asyncio.create_task(_tell(events, news, ping_interval_s, over))
    try:
        yield
    except asyncio.CancelledError:
        # The client has left: half a comment does not matter.
        writer.cancel()
        raise
    finally:
        # Not cancelled otherwise, which could leave half of the headers.
        over.set()
        try:
            await asyncio.wait({writer})
        finally:
            # It has ended, unless the client left just now.
            writer.cancel()
        if not writer.cancelled():
            writer.result()


async def _tell(
    events: EventStream,
    news: Callable[[], str | None],
    ping_interval_s: float,
    over: asyncio.Event,
) -> None:
    said = None
    said_at = 0.0
    wait_s = QUIET_S
    while not await _is_set(over, wait_s):
        wait_s = min(INTERVAL_S, ping_interval_s)
        text = news()
        if text is not None and text != said:
            if not events.is_open:
                await events.open()
            await events.comment(text)
            said, said_at = text, time.monotonic()
        elif events.is_open and time.monotonic() - said_at >= ping_interval_s:
            await events.ping()
            said_at = time.monotonic()


async def _is_set(event: asyncio.Event, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
