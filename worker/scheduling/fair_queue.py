"""A queue whose owners take turns, so that none of them keeps the others waiting. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Items with an owner and a priority. The next item is one of the lowest priority value that
    waits. Among those it is the earliest one of the owner whose last turn is longest ago; among
    owners without a turn, the one whose item came first. Items of one owner and one priority value
    keep their order.

    No item moves up by waiting: as long as items of a lower value come, the others wait. The caller
    limits how long that is.

    A turn is one item, however much work it makes. An owner's last turn is remembered for as long
    as it matters: while somebody waits who has had a turn since.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[str, deque[tuple[int, _T]]]] = {}
        self._turns: dict[str, int] = {}
        self._turn = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(items) for level in self._levels.values() for items in level.values())

    def __bool__(self) -> bool:
        return bool(self._levels)

    def add(self, owner: str, item: _T, priority: int = 0) -> None:
        """Add an item."""
        self._arrivals += 1
        level = self._levels.setdefault(priority, {})
        level.setdefault(owner, deque()).append((self._arrivals, item))

    @property
    def next_priority(self) -> int:
        """The priority value of the next item. Raises ``ValueError`` if there is none."""
        return min(self._levels)

    def peek(self) -> _T:
        """Return the next item without removing it. Raises ``ValueError`` if there is none."""
        priority, owner = self._next()
        return self._levels[priority][owner][0][1]

    def pop(self) -> _T:
        """Remove and return the next item: its owner's turn. Raises ``ValueError`` if empty."""
        priority, owner = self._next()
        _, item = self._levels[priority][owner].popleft()
        self._turn += 1
        self._turns[owner] = self._turn
        self._forget_empty()
        self._forget_turns()
        return item

    def remove_if(self, matches: Callable[[_T], bool]) -> list[_T]:
        """Remove and return all items that match. This does not count as a turn."""
        taken: list[_T] = []
        for level in self._levels.values():
            for owner, items in level.items():
                found = [item for _, item in items if matches(item)]
                if found:
                    taken += found
                    level[owner] = deque(entry for entry in items if not matches(entry[1]))
        self._forget_empty()
        return taken

    def _next(self) -> tuple[int, str]:
        """Return the priority and the owner of the next item."""
        priority = self.next_priority
        level = self._levels[priority]
        owner = min(level, key=lambda owner: (self._turns.get(owner, 0), level[owner][0][0]))
        return priority, owner

    def _forget_empty(self) -> None:
        for priority, level in list(self._levels.items()):
            for owner in [owner for owner, items in level.items() if not items]:
                del level[owner]
            if not level:
                del self._levels[priority]

    def _forget_turns(self) -> None:
        # A turn before those of all who wait does not matter. If nobody waits, only the last turn
        # does.
        waiting = {owner for level in self._levels.values() for owner in level}
        oldest = min((self._turns.get(owner, 0) for owner in waiting), default=self._turn)
        if len(self._turns) > len(waiting):
            self._turns = {owner: turn for owner, turn in self._turns.items() if turn >= oldest}
