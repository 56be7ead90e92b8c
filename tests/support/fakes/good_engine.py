"""The engine of :mod:`good_model`: ``tests.support.fakes.good_engine:create``. Its libraries are
imported when it is made, and not for an estimate."""

from lmx.protocol.messages.specs import WorkerSpec
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.mlx.memory.estimate import estimate

__all__ = ["create", "estimate"]


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """The factory that a spec names."""
    from tests.support.fakes import good_model

    return good_model.create(spec, advanced)
