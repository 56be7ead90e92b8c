"""Which models may not be loaded beside each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from lmx.supervisor.config import GroupConfig


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
