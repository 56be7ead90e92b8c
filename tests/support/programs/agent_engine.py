"""The engine of :mod:`agent_model`: ``tests.support.programs.agent_engine:create``. Its libraries
are imported when it is made, and not for an estimate."""

from lmx.protocol.messages.specs import WorkerSpec
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.mlx.memory.estimate import estimate

__all__ = ["create", "estimate"]


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """The factory that a spec names."""
    from tests.support.programs import agent_model

    return agent_model.create(spec, advanced)
