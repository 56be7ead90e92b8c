"""From the name of an engine in a spec to an engine that is loaded."""

from __future__ import annotations

from typing import cast

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.models.engine import engine_function
from lmx.worker.engine import Engine, EngineFactory, LoadReporter


def load_engine(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Import the factory that the spec names, and have it load the model. Engine thread; takes
    seconds to minutes.

    Raises :class:`lmx.protocol.errors.OperationError` when there is no such factory; passes on what
    the factory raises.
    """
    factory = cast("EngineFactory", engine_function(spec.engine))
    return factory(spec, advanced)
