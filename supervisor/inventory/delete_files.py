"""Carries out what :func:`plan_and_users` has planned. Nobody may use the files any more."""

from collections.abc import Iterable

from lmx.supervisor.inventory.disk import delete_folder, delete_from_hub, delete_unfinished
from lmx.supervisor.inventory.on_disk import DeletionPlan
from lmx.supervisor.state.home import Home


async def delete_files(gone: DeletionPlan, home: Home, model_ids: Iterable[str]) -> int:
    """Delete the files of a plan, the prefix caches of the models that needed them, and what was
    left unfinished. Returns the bytes that this frees on the disk. Raises :class:`OperationError`.
    """
    freed_bytes = await delete_unfinished(home.models)
    if gone.repo_id is not None:
        freed_bytes += await delete_from_hub(gone.repo_id, gone.commits, gone.names)
    prefixes = (home.prefix_cache(model_id) for model_id in model_ids)
    for folder in (*gone.folders, *prefixes):
        freed_bytes += await delete_folder(folder)
    return freed_bytes
