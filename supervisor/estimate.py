"""What a model will take in memory, read from its files without loading it.

Weights from the safetensors headers, KV cache from config.json for one full context (none for
a model that doesn't generate), and a fixed sum for the process. Not exact: the figure measured
after the load replaces it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.states import ModelKind

PROCESS_OVERHEAD_BYTES: Final = 400 * 1024**2
"""Python, mlx, transformers and the tokenizer: 250-350 MiB of resident memory measured in
workers of small models, and some activations."""

_HEADER_LIMIT_BYTES: Final = 100 * 1024**2
_DEFAULT_CONTEXT_TOKENS: Final = 4096


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by what they are for."""

    weights_bytes: int
    kv_cache_bytes: int
    overhead_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum that is reserved."""
        return self.weights_bytes + self.kv_cache_bytes + self.overhead_bytes


def estimate(
    folder: Path, context_length: int | None, kind: ModelKind = ModelKind.CHAT
) -> Estimate:
    """Estimate a model folder. Raises :class:`OperationError` when it is not one, whatever is
    wrong with it: a folder from anywhere is no reason for the supervisor to fall."""
    try:
        return _estimate(folder, context_length, kind)
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} can't be read as a model ({type(error).__name__}: {error}): fetch it again",
        ) from error


def _estimate(folder: Path, context_length: int | None, kind: ModelKind) -> Estimate:
    if not folder.is_dir():
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}: "
            "give a folder with config.json and *.safetensors, "
            "a .gguf file, or a Hugging Face repo id",
        )
    config_file = folder / "config.json"
    try:
        config = json.loads(config_file.read_bytes())
    except FileNotFoundError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{folder} has no config.json: not a model folder"
        ) from error
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{config_file} is not JSON: {error}"
        ) from error
    weights = sum(weights_bytes(shard) for shard in sorted(folder.glob("*.safetensors")))
    if kind is not ModelKind.CHAT:
        # The dense layers of sentence-transformers lie in folders of their own.
        weights += sum(weights_bytes(shard) for shard in sorted(folder.glob("*/*.safetensors")))
        return Estimate(weights, 0, PROCESS_OVERHEAD_BYTES)
    return Estimate(weights, _kv_cache_bytes(config, context_length), PROCESS_OVERHEAD_BYTES)


def weights_bytes(shard: Path) -> int:
    """Return the tensor bytes of a safetensors file, from its header alone.

    Format: u64 little endian header length, then JSON whose entries have ``data_offsets``.
    Raises :class:`OperationError` for a file that is not one.
    """
    try:
        with shard.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT_BYTES:
                raise ValueError(f"header of {length} bytes")
            header = json.loads(file.read(length))
        return max((entry["data_offsets"][1] for entry in _tensors(header)), default=0)
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{shard} is not a safetensors file ({error}): fetch the model again",
        ) from error


def _tensors(header: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _kv_cache_bytes(config: dict[str, Any], context_length: int | None) -> int:
    """Keys and values of one full context, as if no layer had a sliding window."""
    text = config.get("text_config") or config
    heads = _count(text, "num_attention_heads")
    kv_heads = _count(text, "num_key_value_heads") or heads
    head_size = _count(text, "head_dim") or (_count(text, "hidden_size") // heads if heads else 0)
    native = _count(text, "max_position_embeddings") or _DEFAULT_CONTEXT_TOKENS
    tokens = min(context_length or native, native)
    element_bytes = 4 if "32" in str(text.get("torch_dtype") or text.get("dtype") or "") else 2
    per_token = 2 * _count(text, "num_hidden_layers") * kv_heads * head_size * element_bytes
    return per_token * tokens


def _count(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0
