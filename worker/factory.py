"""From the name of an engine in a spec to an engine that is loaded."""

from __future__ import annotations

import importlib
from typing import cast

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.worker.engine import Engine, EngineFactory, LoadReporter


def load_engine(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Import the factory that the spec names, and have it load the model. Engine thread; takes
    seconds to minutes.

    Raises :class:`OperationError` when there is no such factory; passes on what the factory raises.
    """
    return _factory(spec.engine)(spec, advanced)


def _factory(name: str) -> EngineFactory:
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"The engine {name!r} can't be imported: {error}"
        ) from error
    return cast("EngineFactory", function)
