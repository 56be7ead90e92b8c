"""A queue whose owners take turns, so that none of them keeps the others waiting. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Items with an owner. The next item is the earliest one of the owner whose last turn is
    longest ago; among owners without a turn, the one whose item came first. Items of one owner keep
    their order.

    A turn is one item, however much work it makes. An owner's last turn is remembered for as long
    as it matters: while somebody waits who has had a turn since.
    """

    def __init__(self) -> None:
        self._items: dict[str, deque[tuple[int, _T]]] = {}
        self._turns: dict[str, int] = {}
        self._turn = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(items) for items in self._items.values())

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[_T]:
        """Iterate over all items, owner by owner, each owner's in their order."""
        for items in self._items.values():
            for _, item in items:
                yield item

    def add(self, owner: str, item: _T) -> None:
        """Add an item."""
        self._arrivals += 1
        self._items.setdefault(owner, deque()).append((self._arrivals, item))

    def peek(self) -> _T:
        """Return the next item without removing it. Raises ``ValueError`` if there is none."""
        return self._items[self._next_owner()][0][1]

    def pop(self) -> _T:
        """Remove and return the next item; this was its owner's turn. Raises ``ValueError`` if
        there is none."""
        owner = self._next_owner()
        items = self._items[owner]
        _, item = items.popleft()
        self._turn += 1
        self._turns[owner] = self._turn
        if not items:
            del self._items[owner]
        self._forget_turns()
        return item

    def take_out(self, is_meant: Callable[[_T], bool]) -> list[_T]:
        """Remove and return all items for which ``is_meant`` is true. This is nobody's turn."""
        taken: list[_T] = []
        for owner, items in list(self._items.items()):
            found = [item for _, item in items if is_meant(item)]
            if found:
                taken += found
                kept = deque(entry for entry in items if not is_meant(entry[1]))
                if kept:
                    self._items[owner] = kept
                else:
                    del self._items[owner]
        return taken

    def take_first(self, is_meant: Callable[[_T], bool]) -> list[_T]:
        """Remove and return the first items of each owner for as long as ``is_meant`` is true. This
        is nobody's turn."""
        taken: list[_T] = []
        for owner, items in list(self._items.items()):
            while items and is_meant(items[0][1]):
                taken.append(items.popleft()[1])
            if not items:
                del self._items[owner]
        return taken

    def _next_owner(self) -> str:
        return min(
            self._items, key=lambda owner: (self._turns.get(owner, 0), self._items[owner][0][0])
        )

    def _forget_turns(self) -> None:
        # A turn before those of all who wait is as good as none. Without anybody waiting the last
        # turn alone tells who has just had one.
        oldest = min((self._turns.get(owner, 0) for owner in self._items), default=self._turn)
        if len(self._turns) > len(self._items):
            self._turns = {owner: turn for owner, turn in self._turns.items() if turn >= oldest}
