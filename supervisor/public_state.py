"""The state that routers see: a whole snapshot for each change, numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmx.protocol import control
from lmx.supervisor.actions import Actions
from lmx.supervisor.picture import positions
from lmx.supervisor.slots import Slot
from lmx.supervisor.view import model_view


class PublicState:
    """Knows what was published last, so that only facts that changed are published again."""

    def __init__(self, actions: Actions, epoch: str) -> None:
        self.revision = 0
        self._actions = actions
        self._epoch = epoch
        self._created_s = int(actions.wall_s())
        self._published: tuple[Any, ...] | None = None

    def snapshot(
        self, slots: Sequence[Slot], default_model: str | None, now_s: float, *, stopping: bool
    ) -> control.Snapshot:
        """Return the slots as routers see them."""
        places = positions(slots, now_s)
        views = tuple(
            model_view(slot, places.get(slot.model.id), self._created_s, now_s) for slot in slots
        )
        return control.Snapshot(self._epoch, self.revision, default_model, views, stopping)

    def flush(self, snapshot: control.Snapshot) -> None:
        """Publish a snapshot if it says something new; how long to wait is nothing new."""
        facts = (
            snapshot.stopping,
            snapshot.default_model,
            *(replace(view, retry_after_s=None) for view in snapshot.models),
        )
        if facts != self._published:
            self._published = facts
            self.revision += 1
            self._actions.publish(replace(snapshot, revision=self.revision))
