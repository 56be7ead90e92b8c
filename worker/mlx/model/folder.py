"""What the configuration files of a model folder say about serving the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.models.checkpoint import (
    CONFIG_LIMIT_BYTES,
    CheckpointConfig,
    read_checkpoint_config,
)
from lmx.protocol.models.sampling import PARAMETERS, Parameter, SamplingParameters

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """A model folder's own settings; None means that it has none."""

    checkpoint: CheckpointConfig
    """What its config.json says."""

    sampling: SamplingParameters

    @property
    def context_tokens(self) -> int | None:
        """The longest context that the model was made for."""
        return self.checkpoint.context_tokens


def read_folder(folder: Path) -> FolderConfig:
    """Read and check a folder's configuration.

    Raises :class:`OperationError` if it is no model folder, or if it names a ``model_file``:
    mlx-vlm executes that without asking. (:mod:`lmx.worker.mlx.model.guard` handles code that
    transformers would run.)
    """
    config = read_checkpoint_config(folder)
    if config.names_code:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder / 'config.json'} names code of its own to run (model_file), which "
            "lmx doesn't: use a checkpoint of a built-in architecture without that entry.",
        )
    generation = _read_json(folder / "generation_config.json")
    return FolderConfig(config, _sampling(generation))


def _sampling(generation: Mapping[str, Any]) -> SamplingParameters:
    given: dict[str, Any] = {
        name: _number(name, generation.get(name), known) for name, known in PARAMETERS.items()
    }
    if given["top_k"] is not None:
        given["top_k"] = int(given["top_k"])
    if generation.get("do_sample") is False:
        # A checkpoint that switches sampling off wants greedy decoding.
        given["temperature"] = 0.0
    return SamplingParameters(**given)


def effective_context(
    declared: int | None, configured: int | None, impossible: str | None = None
) -> int:
    """Return the context length to serve with: the configured one, within the declared one.

    ``impossible`` is what config.json says where no context can be so long. Raises
    :class:`OperationError` if the configured one is longer than the model allows, or if neither is
    known.
    """
    if declared is None and configured is None:
        problem = (
            f"says that its context has {impossible} tokens, which can't be"
            if impossible
            else "doesn't say how long its context is"
        )
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"The model's config.json {problem}: set context_length."
        )
    if declared is not None and configured is not None and configured > declared:
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"context_length is set to {configured} tokens, but the model's context has "
            f"{declared}: lower it.",
        )
    return min(value for value in (declared, configured) if value is not None)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(read_regular(path, CONFIG_LIMIT_BYTES))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{path} can't be read: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{path} is not JSON: {error}"
        ) from error
    return value if isinstance(value, dict) else {}


def _number(name: str, value: Any, known: Parameter) -> float | None:
    """Return the value of a parameter; None: it has none that a request could have."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    above = value > known.least if known.above_least else value >= known.least
    if not above or not value <= known.most:
        log.warning("model.sampling_ignored", parameter=name, value=value)
        return None
    return float(value)
