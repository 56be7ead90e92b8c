"""The name under which a worker's measured memory is remembered."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from lmx.protocol.states import ModelKind
from lmx.supervisor.config import ModelConfig
from lmx.supervisor.model_files import shards

_KEY_CHARACTERS: Final = 32


def settings_key(
    model: ModelConfig,
    kind: ModelKind,
    path: Path,
    context_tokens: int | None,
    draft: Path | None,
) -> str:
    """Return a hash of the model, its revision and the settings that its memory depends on.

    Reads config.json and looks at the files of weights, but not into them. Empty for a folder
    that can't be read: nothing is remembered of it.
    """
    try:
        parts = [
            _revision(path, kind),
            _revision(draft, ModelKind.CHAT) if draft else None,
            kind.value,
            context_tokens,
            _settings(model),
        ]
    except OSError:
        return ""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_CHARACTERS]


def _revision(path: Path, kind: ModelKind) -> list[Any]:
    config = hashlib.sha256((path / "config.json").read_bytes()).hexdigest()
    files = [(file.name, file.stat()) for file in shards(path, kind)]
    if path.parent.name == "snapshots":
        # Of the hub's cache: the folder's name is the revision, and holds links, whose files
        # another download may have made anew.
        return [path.name, config, [(name, stat.st_size) for name, stat in files]]
    return [str(path), config, [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]]


def _settings(model: ModelConfig) -> list[Any]:
    cache, speculation = model.prefix_cache, model.speculation
    return [
        model.kept_rows,
        model.max_rows,
        model.memory_bytes,
        (cache.enabled, cache.memory_bytes),
        None if speculation is None else speculation.model_dump(exclude={"draft"}),
        (model.engine, model.engine_options),
    ]
