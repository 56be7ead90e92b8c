"""Answers the questions of routers and the CLI about added models, downloads and the files on this
machine."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from lmx.protocol.messages import control, inventory
from lmx.supervisor.control.handlers import Handler
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.inventory.downloads import Downloads


class AddedCommands:
    """Answers questions about added models. Adding one takes a while: its files are read."""

    def __init__(self, added: AddedModels) -> None:
        self._added = added
        self.handlers: dict[type, Handler] = {
            inventory.AddModel: self._add,
            inventory.RemoveModel: self._remove,
        }

    async def _add(
        self, question: inventory.AddModel, _requester: Requester, _now_s: float
    ) -> control.Done:
        await self._added.add(question)
        return control.Done(f"{question.model_id} is served: its first request loads it")

    def _remove(
        self, question: inventory.RemoveModel, _requester: Requester, now_s: float
    ) -> control.Done:
        pid = self._added.remove(question.model_id, now_s)
        return control.Done(f"{question.model_id} is removed; its files stay", pid)


class DiskCommands:
    """Answers questions about downloads and files. Most answers wait for processes and disks."""

    def __init__(self, downloads: Downloads, deletion: Deletion) -> None:
        self._downloads = downloads
        self._deletion = deletion
        self.handlers: dict[type, Handler] = {
            inventory.StartDownload: self._start,
            inventory.CancelDownload: self._cancel,
            inventory.GetDownloads: self._list,
            inventory.GetAvailable: self._available,
            inventory.DeleteModel: self._delete,
        }

    def _start(
        self, question: inventory.StartDownload, _requester: Requester, _now_s: float
    ) -> Coroutine[Any, Any, inventory.DownloadView]:
        return self._downloads.start(question)

    def _cancel(
        self, question: inventory.CancelDownload, _requester: Requester, _now_s: float
    ) -> Coroutine[Any, Any, inventory.DownloadView]:
        return self._downloads.cancel(question.download_id)

    def _list(
        self, question: inventory.GetDownloads, _requester: Requester, _now_s: float
    ) -> inventory.Downloads:
        return self._downloads.list(question.download_id)

    def _available(
        self, _question: inventory.GetAvailable, _requester: Requester, _now_s: float
    ) -> Coroutine[Any, Any, inventory.Available]:
        return self._deletion.available()

    def _delete(
        self, question: inventory.DeleteModel, _requester: Requester, _now_s: float
    ) -> Coroutine[Any, Any, inventory.Deleted]:
        return self._deletion.delete(question.model_id, force=question.force)
