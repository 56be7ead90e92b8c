"""Under what a download is served once it has come."""

from __future__ import annotations

from pathlib import Path

from lmx.protocol.messages.inventory import AddModel
from lmx.supervisor.config.sources import GgufSource, default_model_id
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.inventory.download_records import Download


async def serve_download(added: AddedModels, download: Download, path: Path) -> str | None:
    """Have a model served that was downloaded, unless it is; returns its id. None for a single
    file that is no model. Raises :class:`LmxError`, as when its name is taken."""
    model_id, source = download.repo_id, download.repo_id
    if download.filename is not None:
        if not download.filename.lower().endswith(".gguf"):
            return None
        model_id, source = default_model_id(GgufSource(download.filename)), str(path)
    elif download.revision not in (None, "main"):
        source = f"{download.repo_id}@{download.revision}"
    known = added.find(source)
    if known is None:
        await added.add(AddModel(model_id, source))
    return known or model_id
