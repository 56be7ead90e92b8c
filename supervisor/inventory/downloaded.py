"""Serves a model that was downloaded, and chooses the id under which it is served."""

from __future__ import annotations

from pathlib import Path

from lmx.protocol.messages.inventory import AddModel
from lmx.supervisor.config.sources import GgufSource, default_model_id
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.inventory.download_records import Download


async def serve_download(added: AddedModels, download: Download, path: Path) -> str | None:
    """Add a downloaded model to the added models, unless its source is served already. Returns its
    id, or None for a single file that is not a model. Raises :class:`LmxError`, for example when
    its name is taken."""
    question = question_to_serve(download, path)
    if question is None:
        return None
    known = added.find(question.source)
    if known is None:
        await added.add(question)
    return known or question.model_id


def question_to_serve(download: Download, path: Path) -> AddModel | None:
    """Return the question with which a downloaded model is added; None for a single file that is
    not a model. Pure."""
    if download.filename is not None:
        if not download.filename.lower().endswith(".gguf"):
            return None
        return AddModel(default_model_id(GgufSource(download.filename)), str(path))
    if download.revision not in (None, "main"):
        return AddModel(download.repo_id, f"{download.repo_id}@{download.revision}")
    return AddModel(download.repo_id, download.repo_id)
