"""How many requests are under way, whether new ones are taken, and what one has come to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode

CLIENT_LEFT: Final = ErrorCode.CLIENT_DISCONNECTED.value
"""The error of a record whose client was gone before the end."""


class Traffic:
    """Counts requests. Only :meth:`close` changes whether new ones are taken, for good."""

    def __init__(self) -> None:
        self.requests_total = 0
        self._under_way = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def closed(self) -> bool:
        """Whether the router is ending and takes no more requests."""
        return self._closed

    @property
    def under_way(self) -> int:
        """Requests that have begun and not ended."""
        return self._under_way

    def close(self) -> None:
        """Take no more requests; those under way go on."""
        self._closed = True

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count one request for the duration of the block."""
        self.requests_total += 1
        self._begin()
        try:
            yield
        finally:
            self._end()

    def go_on(self, task: asyncio.Task[Any]) -> None:
        """Count what goes on after its request was answered as under way, until ``task`` ends.
        It is no request of its own."""
        self._begin()
        task.add_done_callback(lambda _: self._end())

    async def idle(self, deadline_s: float | None) -> bool:
        """Wait until nothing is under way; return False when that takes longer (None: for as
        long as it takes)."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


@dataclass(slots=True)
class Record:
    """What the access log says of one request; its handler fills in what it learns."""

    request_id: str
    started_at: float
    """On the monotonic clock, in seconds."""
    owner: str | None = None
    """Whose key it came with (:func:`lmx.router.http.access.key_name`)."""
    asker: str = ""
    """Who takes turns with others, and has limits: the owner, else the client's address."""
    key: str | None = None
    """What the configuration calls the key."""
    job_id: str | None = None
    job_told: bool = False
    """Whether the client has been told the job's id."""
    model: str | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    load_s: float | None = None
    """How long its model was waited for; the next three are the worker's."""
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    """Between outputs, after the first."""
    finish_reason: str | None = None
    error: str | None = None
    _output_at: float | None = None

    @property
    def tokens(self) -> int:
        """All tokens that were computed for it, cached ones among them."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    def note_output(self, now_s: float) -> None:
        """Output has come; ``now_s`` is on the monotonic clock."""
        if self._output_at is None:
            self.ttft_s = now_s - self.started_at
        else:
            self.gaps_s.append(now_s - self._output_at)
        self._output_at = now_s

    def outcome(self) -> dict[str, Any]:
        """Return what is known, for the log."""
        known = {
            "owner": self.owner,
            "key": self.key,
            "job": self.job_id,
            "model": self.model,
            "stream": self.stream,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 4),
            "finish_reason": self.finish_reason,
            "error": self.error,
        }
        return {name: value for name, value in known.items() if value is not None}


RECORD: Final = web.RequestKey("record", Record)
"""Where a request carries its record."""
