"""The factory of the MLX engine: ``engine="lmx.worker.mlx_engine:create"`` in a worker's spec."""

from __future__ import annotations

from lmx.protocol.specs import WorkerSpec
from lmx.worker.blas import prefer_openblas
from lmx.worker.engine import Engine


def create(spec: WorkerSpec) -> Engine:
    """Return an engine that has loaded nothing yet. Imports MLX: takes seconds.

    ``engine_options`` may hold ``prefill_chunk_tokens``: how much of a prompt is processed
    between two tokens of the rows that decode; without it 64 on a CPU, 2048 on Metal.
    """
    prefer_openblas()
    from lmx.worker.mlx_batch import MlxEngine

    return MlxEngine(spec)
