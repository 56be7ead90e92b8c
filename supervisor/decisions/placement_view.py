"""What placement sees of the models and their memory, and what it may decide. Values only.

:class:`Groups` says which models may not be loaded at the same time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from lmx.supervisor.config.schema import GroupConfig


class Groups:
    """The rules of the configured groups. Models without a group have no rules of their own, but an
    exclusive group does not let them stay loaded either."""

    def __init__(self, groups: Iterable[GroupConfig] = ()) -> None:
        self._group_of = {model_id: group for group in groups for model_id in group.models}

    def conflict(self, one: str, other: str) -> bool:
        """Return whether two models may not be loaded at the same time. The order of the two does
        not matter, and a model never conflicts with itself."""
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
    """A model that waits to be started."""

    model_id: str
    need_bytes: int
    requested_at_s: float | None
    """Since when its oldest request, or an operator, has waited; None if nobody waits."""
    pinned: bool = False


class Stage(Enum):
    """Where a resident is: it loads, it serves, it is about to free its bytes, or it was killed and
    does not end."""

    LOADING = auto()
    SERVING = auto()
    LEAVING = auto()
    STUCK = auto()


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that has a worker."""

    model_id: str
    held_bytes: int
    stage: Stage
    pinned: bool = False
    since_s: float = 0.0
    """When it became ready."""
    settled_at_s: float = 0.0
    """It is not evicted before this time, because its requests are only about to arrive."""
    idle_since_s: float | None = None
    """Since when it has had no request; None while it is busy."""
    expires_at_s: float | None = None
    """When it will have been idle for as long as it may stay; None: never."""


@dataclass(frozen=True, slots=True)
class PlacementView:
    """All that a decision may depend on."""

    waiting: tuple[Waiting, ...]
    residents: tuple[Resident, ...]
    budget_bytes: int
    free_bytes: int
    """What is free of the budget. It is negative if more is held than the budget has."""
    returning_bytes: int = 0
    """What workers held that have exited, and has not come back yet."""
    missing_bytes: int = 0
    """What did not come back of exited workers."""
    short_of_memory: bool = False
    """Whether the machine itself is short of memory."""
    groups: Groups = field(default_factory=Groups)
    min_residency_s: float = 0.0
    """A model is not evicted within this time after it became ready."""
    fair_wait_s: float = 0.0
    """For a model that has waited this long, busy models are drained."""


@dataclass(frozen=True, slots=True)
class Start:
    """The model's memory is free: reserve it and start a worker."""

    model_id: str


@dataclass(frozen=True, slots=True)
class Evict:
    """End the model's worker."""

    model_id: str
    for_model: str | None
    """The model that it makes room for. None: memory itself is short."""
    if_idle: bool
    """Whether it ends only if it is idle. Otherwise it ends, for fairness, after its requests."""


@dataclass(frozen=True, slots=True)
class Expire:
    """End the model's worker, because it has been idle for as long as it may stay."""

    model_id: str


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse the model: it can't be started as things stand, however long it waits."""

    model_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Give the start up: nobody waits for the model and there is no room, so it stays down until
    somebody asks for it."""

    model_id: str


Decision = Start | Evict | Expire | Deny | Drop
