"""What an embedding or rerank model's files say of how it is used. Reads a few small files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.worker.mlx.model.folder import declared_context

_COUNTS_FROM_PADDING: Final = frozenset({"camembert", "roberta", "xlm_roberta"})
"""Their first position is the padding token's id + 1: of 514 positions 512 can be used."""


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """``position_tokens``: the longest input that the weights allow, ``context_tokens`` the one
    that the model was trained for; None where it isn't said. ``pooling``: as in 1_Pooling, None:
    the architecture's own. ``sigmoid``: scores are squeezed into 0 to 1."""

    position_tokens: int | None
    context_tokens: int | None
    pooling: dict[str, Any] | None
    normalize: bool
    sigmoid: bool


def read_encoder_settings(folder: Path) -> EncoderSettings:
    """Read a folder's files. Raises :class:`OperationError` for one that is not JSON."""
    config = _read(folder / "config.json") or {}
    positions = _positions(config)
    trained = (_read(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    limits = [value for value in (positions, trained) if isinstance(value, int) and value > 0]
    return EncoderSettings(
        position_tokens=positions,
        context_tokens=min(limits, default=None),
        pooling=_read(folder / "1_Pooling" / "config.json"),
        normalize=_normalizes(_read(folder / "modules.json")),
        sigmoid=_activation(config) != "Identity",
    )


def _positions(config: Mapping[str, Any]) -> int | None:
    declared = declared_context(config)
    if declared is None:
        return None
    if str(config.get("model_type", "")).replace("-", "_") in _COUNTS_FROM_PADDING:
        return declared - int(config.get("pad_token_id") or 0) - 1
    return declared


def _normalizes(modules: Any) -> bool:
    """Whether vectors have length 1; where no list of modules says, they do."""
    if not isinstance(modules, list):
        return True
    kinds = [str(module.get("type", "")) for module in modules if isinstance(module, dict)]
    return any(kind.endswith(".Normalize") for kind in kinds)


def _activation(config: Mapping[str, Any]) -> str:
    """Return the name of the function that the scores go through, after sentence-transformers'
    newer key or its older one; one label without either: a sigmoid."""
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
