"""The factory of the MLX engines: ``engine="lmx.worker.mlx.factory:create"`` in a worker's spec."""

from __future__ import annotations

from typing import assert_never

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import ModelKind
from lmx.worker.engine import Engine
from lmx.worker.mlx.model.guard import prefer_openblas


def create(spec: WorkerSpec) -> Engine:
    """Return the engine of the model's kind, which has loaded nothing yet.

    Imports MLX: takes seconds. ``engine_options`` holds nothing for these.
    """
    prefer_openblas()
    match spec.kind:
        case ModelKind.CHAT:
            from lmx.worker.mlx.engine import MlxEngine

            return MlxEngine(spec)
        case ModelKind.EMBEDDING:
            from lmx.worker.mlx.encoders.embedding import MlxEmbedder

            return MlxEmbedder(spec)
        case ModelKind.RERANK:
            from lmx.worker.mlx.encoders.rerank import MlxReranker

            return MlxReranker(spec)
        case _:
            assert_never(spec.kind)
