"""Limits how many fetches are under way, so that no client can hold up those of all others. Used
from one event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Owner:
    turns: asyncio.Semaphore
    users: int = 0
    """How many have a turn, or wait for one."""


class FetchTurns:
    """Gives turns to at most ``most`` fetches at a time, and to at most half as many of one owner:
    servers that never answer hold theirs until the time-out."""

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._most_own = max(1, most // 2)
        self._owners: dict[str, _Owner] = {}

    @asynccontextmanager
    async def one(self, owner: str) -> AsyncIterator[None]:
        """Have a turn within the block."""
        own = self._owners.get(owner)
        if own is None:
            own = self._owners[owner] = _Owner(asyncio.Semaphore(self._most_own))
        own.users += 1
        try:
            async with own.turns, self._all:
                yield
        finally:
            own.users -= 1
            if not own.users:
                del self._owners[owner]
