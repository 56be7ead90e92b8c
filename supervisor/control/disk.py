"""What routers and the CLI may ask about downloads and about files on this machine. Every answer
comes later: it waits for processes and disks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages import inventory
from lmx.supervisor.control.deferred_replies import LaterAnswers
from lmx.supervisor.core.slot import Asker
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.inventory.downloads import Downloads

QUESTIONS: Final = (
    inventory.StartDownload,
    inventory.CancelDownload,
    inventory.GetDownloads,
    inventory.GetAvailable,
    inventory.DeleteModel,
)


class DiskCommands:
    """Answers with the downloads and the deletion."""

    def __init__(
        self, downloads: Downloads, deletion: Deletion, reply: Callable[[Asker, Any], None]
    ) -> None:
        self._downloads = downloads
        self._deletion = deletion
        self._later = LaterAnswers(reply)

    def answer(self, asker: Asker, question: Any) -> None:
        """Answer one question; what it raises of :class:`LmxError` becomes Denied."""
        self._later.answer(asker, self._answer(question))

    def close(self) -> None:
        """Give up what was not answered yet."""
        self._later.close()

    async def _answer(self, question: Any) -> Any:
        match question:
            case inventory.StartDownload():
                return await self._downloads.start(question)
            case inventory.CancelDownload(download_id):
                return await self._downloads.cancel(download_id)
            case inventory.GetDownloads(download_id):
                return self._downloads.list(download_id)
            case inventory.GetAvailable():
                return await self._deletion.available()
            case inventory.DeleteModel(model_id, force):
                return await self._deletion.delete(model_id, force=force)
            case _:
                kind = type(question).__name__
                raise LmxError(ErrorCode.PROTOCOL_ERROR, f"{kind} is not a question")
