"""Deletes the files of a model, once nobody uses them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages.inventory import Available, Deleted
from lmx.protocol.messages.status import LentRank
from lmx.protocol.states import DOWN
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.events import Events
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.inventory.delete_files import delete_files
from lmx.supervisor.inventory.disk import scan_conversions, scan_hub
from lmx.supervisor.inventory.downloads import Downloads
from lmx.supervisor.inventory.on_disk import (
    DeletionPlan,
    Served,
    adapter_not_deletable,
    available,
    plan_and_users,
    users,
)
from lmx.supervisor.state.home import Home

_UNLOAD_S: Final = 120.0
"""How long streams have to end and a worker to exit. Giving up a worker takes less time."""

_POLL_S: Final = 0.05


@dataclass(eq=False, repr=False)
class Deletion:
    """Knows which models are on disk, and deletes them."""

    _core: Core
    _added: AddedModels
    _downloads: Downloads
    _home: Home
    _events: Events
    _lent: Callable[[], tuple[LentRank, ...]]
    """The ranks of other machines' models that run here."""

    async def available(self) -> Available:
        """Return the models whose files are complete on this machine."""
        repos, conversions = await asyncio.gather(scan_hub(), scan_conversions(self._home.models))
        return Available(available(repos, conversions, self._served()))

    async def delete(self, name: str, *, force: bool) -> Deleted:
        """Delete the files of a model, or those that the disk has by that name. An added model is
        forgotten. Raises :class:`LmxError`: MODEL_NOT_FOUND; MODEL_LOADED unless ``force``;
        NOT_DELETABLE."""
        target = self._target(name)
        is_added = isinstance(target, Served) and self._core.slots[target.model_id].added
        repos, conversions = await asyncio.gather(scan_hub(), scan_conversions(self._home.models))

        def planned() -> tuple[DeletionPlan, tuple[str, ...]]:
            return plan_and_users(
                name, target, self._served(), repos, conversions, is_added=is_added
            )

        gone, ids = planned()
        self._refuse_lent(ids)
        if force:
            for download in self._unfinished(gone):
                await self._downloads.cancel(download)
            await self._unload(ids)
            # Other models may have been added meanwhile.
            gone, ids = planned()
        # Nothing is awaited between the look and the mark: no request begins to load meanwhile.
        self._refuse_lent(ids)
        self._refuse_used(ids, gone)
        with self._leaving(ids, gone):
            await self._downloads.wait_stopped()
            try:
                freed_bytes = await delete_files(gone, self._home, ids)
            finally:
                # Also what was deleted in part is not what was fetched, and other models may have
                # been added meanwhile.
                for model_id in dict.fromkeys((*ids, *users(gone, self._served(), repos))):
                    self._core.files_changed(model_id)
            self._downloads.forget(gone)
            forgotten = self._forget(ids)
        deleted = target.model_id if isinstance(target, Served) else name
        self._events.note(
            "model.deleted",
            deleted,
            f"its files are gone: {format_bytes(freed_bytes)} are free",
            freed_bytes=freed_bytes,
        )
        return Deleted(deleted, freed_bytes, forgotten)

    def _served(self) -> tuple[Served, ...]:
        return tuple(_served(slot) for slot in self._core.slots.values() if not slot.life.removed)

    def _target(self, name: str) -> Served | str:
        try:
            slot = self._core.slot(name)
        except LmxError:
            return name
        if name in slot.model.adapters:
            raise adapter_not_deletable(name, slot.model)
        return _served(slot)

    def _unfinished(self, gone: DeletionPlan) -> list[str]:
        if gone.repo_id is None:
            return []
        return [d.download_id for d in self._downloads.of(gone.repo_id) if d.unfinished]

    def _refuse_lent(self, ids: tuple[str, ...]) -> None:
        """Refuse to delete files that another machine has this one read."""
        rank = next((rank for rank in self._lent() if rank.model in ids), None)
        if rank is not None:
            raise OperationError(
                ErrorCode.MODEL_LOADED,
                f"rank {rank.rank} of {rank.count} of {rank.model} runs here for {rank.owner}, "
                "from these files: unload the model on that machine first",
                param="model_id",
            )

    def _refuse_used(self, ids: tuple[str, ...], gone: DeletionPlan) -> None:
        """Refuse to delete files that are in use, or are about to be used."""
        used = [name for name in ids if self._is_up(name)]
        if used:
            raise OperationError(
                ErrorCode.MODEL_LOADED,
                f"{', '.join(used)} is loaded or about to be, from these files: unload it first, "
                "or delete with force (`lmx rm --force`), which does that",
                param="model_id",
            )
        running = self._unfinished(gone)
        if running:
            raise OperationError(
                ErrorCode.MODEL_LOADED,
                f"{gone.repo_id} is being downloaded ({', '.join(running)}): cancel that first, or "
                "delete with force (`lmx rm --force`), which does that",
                param="model_id",
            )

    @contextmanager
    def _leaving(self, ids: tuple[str, ...], gone: DeletionPlan) -> Iterator[None]:
        self._mark(ids, leaving=True)
        try:
            with nullcontext() if gone.repo_id is None else self._downloads.deleting(gone.repo_id):
                yield
        finally:
            self._mark(ids, leaving=False)

    def _mark(self, ids: tuple[str, ...], *, leaving: bool) -> None:
        now_s = time.monotonic()
        for model_id in ids:
            if model_id in self._core.slots:
                self._core.operator.take(model_id, events.FilesLeaving(leaving), now_s)
        self._core.flush(now_s)

    def _is_up(self, model_id: str) -> bool:
        slot = self._core.slots.get(model_id)
        return slot is not None and (slot.worker is not None or slot.state not in DOWN)

    async def _unload(self, ids: tuple[str, ...]) -> None:
        for model_id in ids:
            if self._is_up(model_id):
                now_s = time.monotonic()
                self._core.operator.take(model_id, events.Unloaded(), now_s)
                self._core.flush(now_s)
        for _ in range(int(_UNLOAD_S / _POLL_S)):
            if not any(self._is_up(name) for name in ids):
                return
            await asyncio.sleep(_POLL_S)

    def _forget(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Serve the added ones of these models no more, and return them."""
        now_s = time.monotonic()
        forgotten = []
        for model_id in ids:
            slot = self._core.slots.get(model_id)
            if slot is not None and slot.added and not slot.life.removed:
                self._added.remove(model_id, now_s)
                forgotten.append(model_id)
        self._core.flush(now_s)
        return tuple(forgotten)


def _served(slot: Slot) -> Served:
    inspection = slot.files.inspection
    file = inspection.gguf_path if inspection is not None else None
    return Served.of(slot.model, None if file is None else Path(file))
