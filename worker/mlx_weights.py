"""Bringing a lazily loaded model's weights into memory, with progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import structlog
from mlx.utils import tree_flatten

from lmx.protocol.buffer_cache import buffer_cache_bytes
from lmx.protocol.states import LoadPhase
from lmx.worker.engine import LoadReporter

log = structlog.get_logger()

# Evaluated at once: small enough for progress to be seen, large enough not to slow it.
_GROUP_BYTES: Final = 64 * 1024 * 1024


def read_weights(model: Any, advanced: LoadReporter) -> None:
    """Evaluate all parameters, and limit the buffers that mlx keeps for reuse."""
    weights = [array for _, array in tree_flatten(model.parameters())]
    total_bytes = sum(array.nbytes for array in weights)
    mx.set_cache_limit(buffer_cache_bytes(total_bytes))
    done_bytes = 0
    for group in _groups(weights):
        mx.eval(group)
        done_bytes += sum(array.nbytes for array in group)
        advanced(LoadPhase.WEIGHTS, done_bytes / total_bytes, "")
    _warn_if_slow(weights)


def _groups(weights: list[mx.array]) -> Iterator[list[mx.array]]:
    group: list[mx.array] = []
    size = 0
    for array in weights:
        group.append(array)
        size += array.nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _warn_if_slow(weights: list[mx.array]) -> None:
    if mx.metal.is_available():
        return
    slow = sorted(
        {str(array.dtype) for array in weights} & {"mlx.core.float16", "mlx.core.bfloat16"}
    )
    if slow:
        log.warning(
            "model.slow_on_cpu",
            dtypes=slow,
            advice="16-bit weights or scales are about 50 times slower on a CPU: use float32",
        )
