"""Loads the engine that a worker's spec names."""

from __future__ import annotations

from typing import cast

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.models.engine import engine_function
from lmx.worker.engine import Engine, EngineFactory, LoadReporter


def load_engine(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Import the factory that the spec names, and let it load the model. Runs on the engine thread
    and takes seconds to minutes.

    Raises :class:`lmx.protocol.errors.OperationError` if there is no such factory, and everything
    that the factory raises.
    """
    factory = cast("EngineFactory", engine_function(spec.engine))
    return factory(spec, advanced)
