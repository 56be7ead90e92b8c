"""How much memory a model's worker gets, and which part of it keeps computed prompts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.errors import OperationError
from lmx.protocol.states import ModelKind
from lmx.supervisor.config import ModelConfig
from lmx.supervisor.estimate import PROCESS_OVERHEAD_BYTES, Estimate, estimate

_LEAST_PREFIX_BYTES: Final = 256 * 1024**2
"""Also for a model of whose cache the estimate knows nothing: some thousand tokens of a small
one."""

_MOST_PREFIX_BYTES: Final = 2 * 1024**3
"""By default: beyond it the disk, from which reading is faster than computing anew, must do."""

_PREFIX_SHARE: Final = 4
"""Of a share that was set by hand, one part in so many."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``reserve_bytes`` is the whole share, ``prefix_cache_bytes`` a part of it."""

    reserve_bytes: int
    prefix_cache_bytes: int


def plan_memory(model: ModelConfig, kind: ModelKind, path: Path) -> MemoryPlan:
    """Return the share of a model's worker. Reads headers of its files and of its draft's.

    Raises :class:`lmx.protocol.errors.OperationError` for a folder that is no model.
    """
    estimated = estimate(path, model.context_length, kind)
    if kind is not ModelKind.CHAT:
        return MemoryPlan(int(model.memory_bytes or estimated.total_bytes), 0)
    total_bytes = estimated.total_bytes
    if model.speculation is not None and model.speculation.draft is not None:
        total_bytes += _draft_bytes(model.speculation.draft, model.context_length)
    prefix_bytes = _prefix_cache_bytes(model, estimated)
    return MemoryPlan(int(model.memory_bytes or total_bytes + prefix_bytes), prefix_bytes)


def folder_path(source: str) -> Path:
    """Return the absolute path of a folder that a person named."""
    return Path(os.path.abspath(Path(source).expanduser()))  # noqa: PTH100


def _draft_bytes(source: str, context_length: int | None) -> int:
    try:
        draft = estimate(folder_path(source), context_length)
    except OperationError as error:
        raise OperationError(error.code, f"speculation.draft: {error}") from error
    return draft.total_bytes - PROCESS_OVERHEAD_BYTES


def _prefix_cache_bytes(model: ModelConfig, estimated: Estimate) -> int:
    cache = model.prefix_cache
    if not cache.enabled:
        return 0
    if cache.memory_bytes is not None:
        return int(cache.memory_bytes)
    wanted_bytes = min(max(estimated.kv_cache_bytes, _LEAST_PREFIX_BYTES), _MOST_PREFIX_BYTES)
    if model.memory_bytes is None:
        return wanted_bytes
    return min(wanted_bytes, int(model.memory_bytes) // _PREFIX_SHARE)
