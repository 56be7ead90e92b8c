"""How much memory a model's worker gets, and which part of it keeps computed prompts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.errors import OperationError
from lmx.protocol.kv_shape import KvLayers
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
    """What a model's worker gets, in bytes, by what it is for.

    ``static_bytes``: there once it is loaded (weights, a draft model, the process).
    ``kv_cache_bytes``, ``prefix_cache_bytes`` and ``activation_bytes``: come with work.
    ``peak_bytes``: the most that a worker with these settings was ever measured at, 0 if none
    was. ``set_bytes``: the share that was set by hand, which goes before all of it.
    ``context_tokens`` None: the model's own. ``settings_key`` names model, revision and
    settings, for what is remembered of them.
    """

    static_bytes: int
    prefix_cache_bytes: int = 0
    kv_cache_bytes: int | None = None
    activation_bytes: int = 0
    peak_bytes: int = 0
    set_bytes: int | None = None
    context_tokens: int | None = None
    kv_layers: tuple[KvLayers, ...] = ()
    settings_key: str = ""

    @property
    def working_bytes(self) -> int:
        """What comes with work, on top of what is there once it is loaded."""
        return (self.kv_cache_bytes or 0) + self.prefix_cache_bytes + self.activation_bytes

    @property
    def reserve_bytes(self) -> int:
        """What is reserved before the load."""
        return self.corrected_bytes(self.static_bytes)

    def corrected_bytes(self, static_bytes: int) -> int:
        """Return what is to be reserved once ``static_bytes`` were measured after the load:
        the measured figure in place of the estimate, and room for the work."""
        if self.set_bytes is not None:
            return max(self.set_bytes, static_bytes)
        return max(static_bytes + self.working_bytes, self.peak_bytes)


def plan_memory(model: ModelConfig, kind: ModelKind, path: Path) -> MemoryPlan:
    """Return the share of a model's worker. Reads headers of its files and of its draft's.

    Raises :class:`lmx.protocol.errors.OperationError` for a folder that is no model.
    """
    estimated = estimate(path, model.context_length, kind)
    if kind is not ModelKind.CHAT:
        return MemoryPlan(estimated.total_bytes, set_bytes=_set_bytes(model))
    total_bytes = estimated.total_bytes
    if model.speculation is not None and model.speculation.draft is not None:
        total_bytes += _draft_bytes(model.speculation.draft, model.context_length)
    prefix_bytes = _prefix_cache_bytes(model, estimated)
    return MemoryPlan(total_bytes, prefix_bytes, set_bytes=_set_bytes(model))


def _set_bytes(model: ModelConfig) -> int | None:
    return None if model.memory_bytes is None else int(model.memory_bytes)


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
