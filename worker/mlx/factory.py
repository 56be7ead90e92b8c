"""The factory of the MLX engines: ``engine="lmx.worker.mlx.factory:create"`` in a worker's spec.

``estimate`` returns what a model takes before it is loaded (:mod:`lmx.protocol.models.engine`). For
its sake nothing of MLX is imported before ``create`` is called.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, assert_never

from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.mlx.memory.estimate import estimate

if TYPE_CHECKING:
    # These imports would be half of what an estimate imports.
    from collections.abc import Callable

    from lmx.protocol.messages.specs import WorkerSpec
    from lmx.protocol.states import MemoryWiring
    from lmx.worker.engine.interfaces import Engine, LoadReporter, Ranks

__all__ = ["create", "estimate", "prepare"]


def create(spec: WorkerSpec, advanced: LoadReporter, ranks: Ranks | None = None) -> Engine:
    """Load the model with the engine for its kind. See ``EngineFactory``.

    This imports MLX, which takes seconds. These engines have no ``engine_options``.
    """
    from lmx.worker.mlx.device.kernels import shared_kernels

    kernels = shared_kernels()
    if kernels is not None:
        kernels.fetch()
    load = _import_libraries(spec.wiring, spec.kind, ranks)
    from lmx.worker.mlx.model.passes import report_passes_to

    progress = _Progress(advanced)
    try:
        with report_passes_to(progress.repeat):
            engine = load(spec, progress)
    except Exception:
        # It may have failed after the weights were wired, and then no engine gives them back.
        from lmx.worker.mlx.device.metal_memory import unwire

        unwire()
        raise
    if kernels is not None:
        kernels.save()
    return engine


def prepare(wiring: MemoryWiring) -> None:
    """Import what models need, before it is known which one is loaded. ``wiring`` must be that of
    its spec. What models of the other kinds need besides what chat models do is little."""
    _import_libraries(wiring, ModelKind.CHAT, None)


def _import_libraries(
    wiring: MemoryWiring, kind: ModelKind, ranks: Ranks | None
) -> Callable[[WorkerSpec, LoadReporter], Engine]:
    from lmx.worker.mlx.device.before_mlx import keep_resident, prefer_openblas

    prefer_openblas()
    keep_resident(wiring)
    from lmx.worker.mlx.library_imports import quick_library_imports

    with quick_library_imports():
        # This imports mlx, which must come after both.
        from lmx.worker.mlx.device.cpu import use_few_operations

        use_few_operations()
        return _loader(kind, ranks)


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


def _loader(kind: ModelKind, ranks: Ranks | None) -> Callable[[WorkerSpec, LoadReporter], Engine]:
    match kind:
        case ModelKind.CHAT:
            from lmx.worker.mlx.engine import load_generator

            return partial(load_generator, ranks=ranks)
        case ModelKind.EMBEDDING:
            from lmx.worker.mlx.encoders.embedding import load_embedder

            return load_embedder
        case ModelKind.RERANK:
            from lmx.worker.mlx.encoders.rerank import load_reranker

            return load_reranker
        case ModelKind.TRANSCRIPTION:
            from lmx.worker.mlx.speech.transcriber import load_transcriber

            return load_transcriber
        case ModelKind.SPEECH:
            from lmx.worker.mlx.voices.speaker import load_speaker

            return load_speaker
        case _:
            assert_never(kind)
