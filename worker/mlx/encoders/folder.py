"""What the files of an embedding or rerank model say about its use. Reads a few small files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import (
    CheckpointConfig,
    Section,
    count,
    read_checkpoint_config,
)

_COUNTS_FROM_PADDING: Final = frozenset({"camembert", "roberta", "xlm_roberta"})
"""The first position of these models is the padding token's id + 1: of 514 positions 512 can be
used."""


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How an encoder is to be used."""

    position_tokens: int | None
    """The longest input that the weights allow. None: the files don't say."""

    context_tokens: int | None
    """The longest input that the model was trained for. None: the files don't say."""

    pooling: dict[str, Any] | None
    """The content of 1_Pooling's file. None: the architecture's own pooling."""

    normalize: bool
    """Whether vectors are scaled to length 1."""

    sigmoid: bool
    """Whether a sigmoid maps scores to the range 0 to 1."""


def read_encoder_settings(folder: Path) -> EncoderSettings:
    """Read a folder's files. Raises :class:`OperationError` for one that is not JSON, and where
    there is no config.json."""
    config = read_checkpoint_config(folder)
    positions = _positions(config)
    trained = (_read(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    limits = [value for value in (positions, trained) if isinstance(value, int) and value > 0]
    return EncoderSettings(
        position_tokens=positions,
        context_tokens=min(limits, default=None),
        pooling=_read(folder / "1_Pooling" / "config.json"),
        normalize=_normalizes(_read(folder / "modules.json")),
        sigmoid=_activation(config.whole) != "Identity",
    )


def _positions(config: CheckpointConfig) -> int | None:
    declared = config.context_tokens
    if declared is None:
        return None
    if config.model_type.replace("-", "_") in _COUNTS_FROM_PADDING:
        return declared - count(config.whole, "pad_token_id") - 1
    return declared


def _normalizes(modules: Any) -> bool:
    """Return whether vectors have length 1. They do if there is no list of modules."""
    if not isinstance(modules, list):
        return True
    kinds = [str(module.get("type", "")) for module in modules if isinstance(module, dict)]
    return any(kind.endswith(".Normalize") for kind in kinds)


def _activation(config: Section) -> str:
    """Return the name of the function that is applied to the scores, from sentence-transformers'
    newer key or its older one. A model with one label and neither key has a sigmoid."""
    newer = config.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, dict) else None
    name = name or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    return str(name).rpartition(".")[2]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{path} is not JSON: {error}"
        ) from error
