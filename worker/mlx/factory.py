"""The factory of the MLX engines: ``engine="lmx.worker.mlx.factory:create"`` in a worker's spec.

``estimate`` returns what a model takes before it is loaded (:mod:`lmx.protocol.models.engine`). For
its sake nothing of MLX is imported before ``create`` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.mlx.memory.estimate import estimate

if TYPE_CHECKING:
    # These imports would be half of what an estimate imports.
    from lmx.protocol.messages.specs import WorkerSpec
    from lmx.worker.engine.interfaces import Engine, LoadReporter

__all__ = ["create", "estimate"]


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load the model with the engine for its kind. See ``EngineFactory``.

    This imports MLX, which takes seconds. These engines have no ``engine_options``.
    """
    from lmx.worker.mlx.device.before_mlx import keep_resident, prefer_openblas
    from lmx.worker.mlx.device.kernels import shared_kernels

    kernels = shared_kernels()
    if kernels is not None:
        kernels.fetch()
    prefer_openblas()
    keep_resident(spec.wiring)
    # This imports mlx, which must come after both.
    from lmx.worker.mlx.device.cpu import use_few_operations

    use_few_operations()
    from lmx.worker.mlx.model.passes import report_passes_to

    progress = _Progress(advanced)
    try:
        with report_passes_to(progress.repeat):
            engine = _load(spec, progress)
    except Exception:
        # It may have failed after the weights were wired, and then no engine gives them back.
        from lmx.worker.mlx.device.metal_memory import unwire

        unwire()
        raise
    if kernels is not None:
        kernels.save()
    return engine


class _Progress:
    """A ``LoadReporter`` that can report again what it reported last."""

    def __init__(self, advanced: LoadReporter) -> None:
        self._advanced = advanced
        self._last: tuple[LoadPhase, float | None, str] = (LoadPhase.START, None, "")

    def __call__(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        self._last = phase, fraction, detail
        self._advanced(phase, fraction, detail)

    def repeat(self) -> None:
        """Say that the load computes, in the phase in which it is."""
        self._advanced(*self._last)


def _load(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
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
        case ModelKind.TRANSCRIPTION:
            from lmx.worker.mlx.speech.transcriber import load_transcriber

            return load_transcriber(spec, advanced)
        case _:
            assert_never(spec.kind)
