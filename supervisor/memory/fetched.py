"""Where a model's folder is on this machine, without fetching or importing anything."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    file_hash,
    folder_path,
    parse_source,
)
from lmx.supervisor.memory.files import converted_file
from lmx.supervisor.state.home import Home

_REF_LIMIT_BYTES: Final = 4096


def fetched_folder(source: str, home: Home, environment: Mapping[str, str]) -> Path | None:
    """Return the model folder of a source: its own, or the one that was made from it; None if it
    was not fetched yet. It may be incomplete."""
    match parse_source(source):
        case FolderSource(path):
            return folder_path(path)
        case GgufSource(path):
            return _converted(converted_file(folder_path(path)), home)
        case HubSource(repo_id, revision):
            return _snapshot(repo_id, revision or "main", environment)


def _converted(file: Path, home: Home) -> Path | None:
    # The folders have the names that lmx.supervisor.fetch.gguf gives them. Of several forms the
    # latest counts.
    found = [path.parent for path in home.models.glob(f"*-{file_hash(file)}/config.json")]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def _snapshot(repo_id: str, revision: str, environment: Mapping[str, str]) -> Path | None:
    repository = hub_cache(environment) / f"models--{repo_id.replace('/', '--')}"
    try:
        named = read_regular(repository / "refs" / revision, _REF_LIMIT_BYTES)
        commit = named.decode("ascii").strip()
    except (OSError, ValueError):
        commit = revision
    folder = repository / "snapshots" / commit
    return folder if folder.is_dir() else None


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder in which the hub client keeps repositories, found as that client finds
    it: an older name of the variable counts too, and variables within a path are those of this
    process."""
    caches = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = environment.get("HF_HOME", str(Path(caches, "huggingface")))
    older = environment.get("HUGGINGFACE_HUB_CACHE", str(Path(home, "hub")))
    path = environment.get("HF_HUB_CACHE", older)
    return Path(os.path.expandvars(os.path.expanduser(path)))  # noqa: PTH111
