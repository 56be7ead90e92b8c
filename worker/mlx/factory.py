"""The factory of the MLX engines: ``engine="lmx.worker.mlx.factory:create"`` in a worker's spec."""

from __future__ import annotations

from typing import assert_never

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import ModelKind
from lmx.worker.engine import Engine, LoadReporter
from lmx.worker.mlx.model.guard import prefer_openblas


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load the model as what its kind says. See :class:`lmx.worker.engine.EngineFactory`.

    Imports MLX: that takes seconds. ``engine_options`` holds nothing for these.
    """
    prefer_openblas()
    match spec.kind:
        case ModelKind.CHAT:
            from lmx.worker.mlx.engine import load_generator

            return load_generator(spec, advanced)
        case ModelKind.EMBEDDING:
            from lmx.worker.mlx.encoders.embedding import load_embedder

            return load_embedder(spec, advanced)
        case ModelKind.RERANK:
            from lmx.worker.mlx.encoders.rerank import load_reranker

            return load_reranker(spec, advanced)
        case _:
            assert_never(spec.kind)
