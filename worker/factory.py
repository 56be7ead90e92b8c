"""From the name of an engine in a spec to the engine."""

from __future__ import annotations

import importlib
from typing import cast

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.worker.engine import Engine


def make_engine(spec: WorkerSpec) -> Engine:
    """Import ``module:function`` and call it with the spec. May take seconds.

    Raises :class:`OperationError` when there is no such function; passes on what it raises.
    """
    module_name, _, function_name = spec.engine.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"The engine {spec.engine!r} can't be imported: {error}"
        ) from error
    return cast("Engine", function(spec))
