"""Limits how much of something is under way, so that no client can hold up that of all others. Used
from one event loop only."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Owner:
    turns: asyncio.Semaphore
    users: int = 0
    """How many have a turn, or wait for one."""


class FairSemaphore:
    """Gives turns to at most ``most`` at a time, and to at most half as many of one owner: what
    others never answer holds its turn until the time-out."""

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._most_own = max(1, most // 2)
        self._owners: dict[str, _Owner] = {}

    @asynccontextmanager
    async def hold(self, owner: str) -> AsyncIterator[None]:
        """Have a turn within the block."""
        end = await self.acquire(owner)
        try:
            yield
        finally:
            end()

    async def acquire(self, owner: str) -> Callable[[], None]:
        """Wait for a turn; return what ends it, to be called once."""
        own = self._owners.get(owner)
        if own is None:
            own = self._owners[owner] = _Owner(asyncio.Semaphore(self._most_own))
        own.users += 1
        try:
            await own.turns.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                own.turns.release()
                raise
        except BaseException:
            self._leave(owner, own)
            raise

        def end() -> None:
            self._all.release()
            own.turns.release()
            self._leave(owner, own)

        return end

    def _leave(self, owner: str, own: _Owner) -> None:
        own.users -= 1
        if not own.users:
            del self._owners[owner]
