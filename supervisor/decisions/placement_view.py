"""The picture that placement decides on, and what it may decide. Values only.

Which models may not be loaded beside each other. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from lmx.supervisor.config.schema import GroupConfig


class Groups:
    """The rules of the configured groups. Models without a group have none of their own, but an
    exclusive group does not let them stay either."""

    def __init__(self, groups: Iterable[GroupConfig] = ()) -> None:
        self._group_of = {model_id: group for group in groups for model_id in group.models}

    def conflict(self, one: str, other: str) -> bool:
        """Whether two models may not be loaded at a time. Symmetric; never of one with itself."""
        if one == other:
            return False
        first, second = self._group_of.get(one), self._group_of.get(other)
        if first is second:
            return first is not None and first.swap
        return _drives_out(first, second) or _drives_out(second, first)


def _drives_out(group: GroupConfig | None, other: GroupConfig | None) -> bool:
    if group is None or not group.exclusive:
        return False
    return other is None or not other.persistent


@dataclass(frozen=True, slots=True)
class Waiting:
    """A model that is to be started. ``asked_at_s``: since when its oldest request, or an
    operator, waits; None: nobody does."""

    model_id: str
    need_bytes: int
    asked_at_s: float | None
    pinned: bool = False


class Stage(Enum):
    """Where a resident is: it loads, it serves, its bytes are on their way back, or it was killed
    and does not end."""

    LOADING = auto()
    SERVING = auto()
    LEAVING = auto()
    STUCK = auto()


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that has a worker. ``settled_at_s``: until then nobody takes its place, because
    its requests are only about to come. ``since_s``: when it became ready. ``idle_since_s``:
    None while it is busy. ``expires_at_s``: None: never."""

    model_id: str
    held_bytes: int
    stage: Stage
    pinned: bool = False
    since_s: float = 0.0
    settled_at_s: float = 0.0
    idle_since_s: float | None = None
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlacementView:
    """All that a decision may depend on. ``free_bytes`` is negative by what is held beyond the
    budget; ``returning_bytes`` were held by workers that have exited."""

    waiting: tuple[Waiting, ...]
    residents: tuple[Resident, ...]
    budget_bytes: int
    free_bytes: int
    returning_bytes: int = 0
    missing_bytes: int = 0
    short_of_memory: bool = False
    groups: Groups = field(default_factory=Groups)
    min_residency_s: float = 0.0
    fair_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """Its memory is free: reserve it and start a worker."""

    model_id: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Have it end: only if it is idle, or, for fairness, after the requests that it has.
    ``for_model`` None: because memory itself is short."""

    model_id: str
    for_model: str | None
    if_idle: bool


@dataclass(frozen=True, slots=True)
class Expire:
    """It has been idle for as long as it was to stay."""

    model_id: str


@dataclass(frozen=True, slots=True)
class Deny:
    """It can't be started as things stand, however long it waits."""

    model_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Nobody waits for it and there is no room: it stays down until somebody asks."""

    model_id: str


Decision = Start | Evict | Expire | Deny | Drop
