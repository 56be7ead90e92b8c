"""What the name of an engine stands for: ``module:function``.

The function loads a model (:class:`lmx.worker.engine.EngineFactory`). Its module has another one
named ``estimate``, of the type :data:`Estimate`, which must need no library of the engine's: it is
called in a process of its own, before the model is loaded, and people wait for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.models.memory import MemoryModel
from lmx.protocol.states import ModelKind

Estimate = Callable[[Path, CheckpointConfig, ModelKind], MemoryModel]
"""Takes a model's folder, what its config.json says, and what the model is for. Reads headers,
not weights; blocks for as long as the disk does. Raises :class:`OperationError` for a folder
that is no model's."""

ESTIMATE: Final = "estimate"


def engine_function(engine: str) -> Callable[..., Any]:
    """Import an engine's module and return the function that loads a model. May take seconds.

    Raises :class:`OperationError` when there is no such module or function.
    """
    module_name, _, function_name = engine.partition(":")
    return _function(engine, module_name, function_name)


def estimate_function(engine: str) -> Estimate:
    """Import an engine's module and return the function that estimates a model's memory.

    Raises :class:`OperationError` when there is no such module, or it has no such function.
    """
    return _function(engine, engine.partition(":")[0], ESTIMATE)


def _function(engine: str, module_name: str, name: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"The engine {engine!r} can't be imported: {error}"
        ) from error
    return function
