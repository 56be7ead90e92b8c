"""Answers the questions of routers and the CLI about added models, downloads and the files on this
machine."""

from collections.abc import Callable

from lmx.protocol.messages import control, inventory
from lmx.supervisor.control.handlers import Handler, replacing
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.inventory.downloads import Downloads


def added_handlers(added: AddedModels, is_replaced: Callable[[], bool]) -> dict[type, Handler]:
    """Return the handlers of questions about added models. Adding one takes a while: its files are
    read. None is removed while the supervisor is being replaced, because the next one has no place
    for a worker that still ends its streams, and would kill it."""

    async def add(question: inventory.AddModel, _now_s: float) -> control.Done:
        await added.add(question)
        return control.Done(f"{question.model_id} is served: its first request loads it")

    def remove(question: inventory.RemoveModel, now_s: float) -> control.Done:
        if is_replaced():
            raise replacing()
        pid = added.remove(question.model_id, now_s)
        return control.Done(f"{question.model_id} is removed; its files stay", pid)

    return {inventory.AddModel: add, inventory.RemoveModel: remove}


def disk_handlers(downloads: Downloads, deletion: Deletion) -> dict[type, Handler]:
    """Return the handlers of questions about downloads and files. Most answers wait for processes
    and disks."""
    return {
        inventory.StartDownload: lambda question, _now_s: downloads.start(question),
        inventory.CancelDownload: lambda question, _now_s: downloads.cancel(question.download_id),
        inventory.GetDownloads: lambda question, _now_s: downloads.list(question.download_id),
        inventory.GetAvailable: lambda _question, _now_s: deletion.available(),
        inventory.DeleteModel: lambda question, _now_s: deletion.delete(
            question.model_id, force=question.force
        ),
    }
