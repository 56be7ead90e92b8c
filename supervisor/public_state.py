"""The state that routers see: a whole snapshot for each change, numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from lmx.protocol import control
from lmx.supervisor.actions import Actions
from lmx.supervisor.config import Config
from lmx.supervisor.picture import positions
from lmx.supervisor.slots import Slot
from lmx.supervisor.view import model_view

_FREE_STEP_BYTES: Final = 64 * 1024**2
"""A smaller change of what is free is nothing new: a cache that grows makes one each second."""


class PublicState:
    """Knows what was published last, so that only facts that changed are published again."""

    def __init__(self, actions: Actions, epoch: str) -> None:
        self.revision = 0
        self._actions = actions
        self._epoch = epoch
        self._started_s = int(actions.wall_s())
        self._published: tuple[Any, ...] | None = None

    def snapshot(
        self,
        slots: Sequence[Slot],
        config: Config,
        free_bytes: int,
        now_s: float,
        *,
        stopping: bool,
        no_loads: str | None,
    ) -> control.Snapshot:
        """Return the slots as routers see them."""
        places = positions(slots, now_s)
        views = tuple(
            model_view(slot, places.get(slot.model.id), self._started_s, now_s) for slot in slots
        )
        return control.Snapshot(
            self._epoch, self.revision, config.default_model_id, views, stopping,
            routes=_routes(config), free_bytes=free_bytes,
            no_loads=no_loads,
        )  # fmt: skip

    def flush(self, snapshot: control.Snapshot) -> None:
        """Publish a snapshot if it says something new; how long to wait is nothing new."""
        facts = (
            snapshot.stopping,
            snapshot.no_loads,
            snapshot.default_model,
            snapshot.routes,
            snapshot.free_bytes // _FREE_STEP_BYTES,
            *(replace(view, retry_after_s=None) for view in snapshot.models),
        )
        if facts != self._published:
            self._published = facts
            self.revision += 1
            self._actions.publish(replace(snapshot, revision=self.revision))


def _routes(config: Config) -> tuple[control.Route, ...]:
    id_of = {name: model.id for model in config.models for name in (model.id, *model.aliases)}
    return tuple(
        # Two names may be of one model. Routers leave out what is not there.
        control.Route(name, tuple(dict.fromkeys(id_of.get(each, each) for each in names)))
        for name, names in config.routing.items()
    )
