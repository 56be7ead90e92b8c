"""Finds what the name of an engine, ``module:function``, stands for.

The function loads a model (``lmx.worker.engine.interfaces``). Its module has another function
``estimate`` of the type :data:`Estimate`. That one must not need the libraries of the
engine, because it is called in a process of its own before the model is loaded, while people wait.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.models.memory import MemoryModel
from lmx.protocol.states import MemoryWiring, ModelKind

Estimate = Callable[[Path, CheckpointConfig, ModelKind], MemoryModel]
"""A function that takes a model's folder, what its config.json says, and what the model is for. It
reads headers and no weights, and blocks for as long as the disk does. It raises
:class:`OperationError` for a folder that is not a model's."""

ESTIMATE: Final = "estimate"
PREPARE: Final = "prepare"


def engine_function(engine: str) -> Callable[..., Any]:
    """Import an engine's module and return the function that loads a model. This may take seconds.

    This and the functions below raise :class:`OperationError` when there is no such module or
    function.
    """
    return _function(engine, engine.partition(":")[2])


def estimate_function(engine: str) -> Estimate:
    """Import an engine's module and return the function that estimates a model's memory."""
    return _function(engine, ESTIMATE)


def prepare_function(engine: str) -> Callable[[MemoryWiring], None]:
    """Import an engine's module and return the function that imports all that its models need. The
    one argument is what a process has for good once that is imported. It is only needed of the
    engine that spare workers have."""
    return _function(engine, PREPARE)


def _function(engine: str, name: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(engine.partition(":")[0])
        function: Callable[..., Any] = getattr(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"The engine {engine!r} can't be imported: {error}"
        ) from error
    return function
