"""The name under which a worker's measured memory is remembered."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from lmx.protocol.states import ModelKind
from lmx.supervisor.config import ModelConfig
from lmx.supervisor.model_files import ModelFiles

_KEY_CHARACTERS: Final = 32


def settings_key(
    model: ModelConfig,
    kind: ModelKind,
    files: ModelFiles,
    context_tokens: int | None,
    draft: ModelFiles | None,
) -> str:
    """Return a hash of the model, its revision and the settings that its memory depends on."""
    parts = [
        files.revision,
        None if draft is None else draft.revision,
        kind.value,
        context_tokens,
        _settings(model),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_CHARACTERS]


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
