"""The device begins a decode step while the host still describes the rest of it.

MLX on a CPU takes about fifty operations ahead, which is a part of a layer: without this, the
device has nothing to do while the host sends a step's tokens and describes the next step. So each
layer is handed over as soon as it is described: a single row of SmolLM2, and 32 rows of a tiny
model, take about a tenth less time for a step. A hand-over costs the host some 40 us, so nothing is
gained where the device is the faster of the two: with thin layers and few rows. A GPU has whole
steps in its queue, and nothing to gain either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import structlog

from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.hidden import wrap_call

log = structlog.get_logger()

_THIN_LAYER_BYTES: Final = 1 << 20
_MANY_ROWS: Final = 16
"""With so many rows the device is the slower one even where layers are thin."""


class EarlyStart:
    """Hands over what layers return, while it is entered. Engine thread."""

    def __init__(self, layers: Sequence[Any], least_rows: int) -> None:
        self.least_rows = least_rows
        """How many rows gain by it."""
        self._on = False
        # What comes behind the last one is handed over with the drawn tokens.
        self._ends = [wrap_call(layer, self._hear) for layer in layers[:-1]]

    def __enter__(self) -> None:
        self._on = True

    def __exit__(self, *_: object) -> None:
        self._on = False

    def undo(self) -> None:
        """Leave the layers as they were."""
        for end in self._ends:
            end()

    def _hear(self, output: Any) -> None:
        if self._on:
            # Some layers return more than the hidden states, behind them.
            mx.async_eval(output[0] if isinstance(output, tuple) else output)  # type: ignore[no-untyped-call]


def start_early(forward: Forward) -> None:
    """Let the decode steps of a model begin early, if the device gains by that and the model's
    layers can be computed one by one, which is tried."""
    layers = getattr(forward.language_model, "layers", None)
    if mx.metal.is_available() or not isinstance(layers, list):
        return
    thin = forward.weight_bytes < _THIN_LAYER_BYTES * len(layers)
    forward.early_start = early = EarlyStart(layers, _MANY_ROWS if thin else 1)
    try:
        with early:
            mx.eval(forward.decode(mx.array([[0]]), forward.new_cache(), None))
    except Exception as error:  # Such as for a model that compiles several layers as a whole.
        log.info("early_start.off", reason=f"{type(error).__name__}: {error}")
        early.undo()
        forward.early_start = None
