"""The only reader of an adapter folder's adapter_config.json, for all processes.

An adapter (LoRA, DoRA) is what a fine-tune has changed of a model: two small matrices for each
layer that it changes. Two forms of folders are known: mlx-lm's, which mlx-vlm writes too, and that
of Hugging Face's PEFT.

The file may come from anywhere, so its size and its nesting are limited.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import parse_json, read_regular

CONFIG_NAME: Final = "adapter_config.json"
_CONFIG_LIMIT_BYTES: Final = 1024**2
_LONGEST_NAME: Final = 80

_OTHERWISE: Final[Mapping[str, tuple[Any, ...]]] = {
    "alpha_pattern": (None, {}),
    "bias": (None, "none"),
    "fan_in_fan_out": (None, False),
    "layer_replication": (None, []),
    "lora_bias": (None, False),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
}
"""Keys of PEFT that mean more than two matrices for a layer with one scale for all, and the values
with which they don't."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What is known of an adapter from its adapter_config.json."""

    weights: Path
    """The file of its matrices."""
    peft: bool
    """Whether the matrices have PEFT's names and shapes; else mlx-lm's."""
    scale: float
    """By what the product of a layer's two matrices is multiplied."""
    dora: bool
    """Whether each layer also has a magnitude (DoRA)."""
    base: str | None = None
    """The model that it says it was made for, as a name or a path on the machine of its maker."""


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read the configuration of the adapter in a folder, and see that its weights are there.

    Raises :class:`OperationError` for a folder that has no adapter, and for an adapter of a kind
    that lmx doesn't serve.
    """
    if not folder.is_dir():
        raise _refused(f"there is no folder {folder}: check the path on the machine that runs lmx")
    try:
        content = parse_json(read_regular(folder / CONFIG_NAME, _CONFIG_LIMIT_BYTES))
    except FileNotFoundError:
        raise _no_adapter(folder) from None
    except OSError as error:
        why = error.strerror or error
        raise _refused(f"{folder / CONFIG_NAME} can't be read: {why}") from error
    except ValueError as error:
        raise _refused(f"{folder / CONFIG_NAME} is not JSON ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise _refused(f"{folder / CONFIG_NAME} is no JSON object: fetch the adapter again")
    found = _peft(folder, content) if "peft_type" in content else _mlx(folder, content)
    if not found.weights.is_file():
        raise _refused(f"{folder} has no {found.weights.name}: fetch the adapter again")
    return found


def _mlx(folder: Path, content: Mapping[str, Any]) -> AdapterConfig:
    kind = content.get("fine_tune_type", "lora")
    if kind == "full":
        raise _refused(
            f"{folder} is a full fine-tune, which replaces the model's own weights: fuse it with "
            "`mlx_lm.fuse`, and make the fused folder the source of a model of its own"
        )
    if kind not in ("lora", "dora"):
        raise _refused(f"{folder} is an adapter of the type {_shown(kind)}; lmx serves lora, dora")
    parameters = content.get("lora_parameters")
    scale = _number(parameters.get("scale") if isinstance(parameters, dict) else None)
    if scale is None:
        raise _refused(
            f"{folder / CONFIG_NAME} has no lora_parameters.scale, which mlx-lm writes there: "
            "add the scale that the adapter was trained with"
        )
    base = _name(content.get("model"))
    return AdapterConfig(folder / "adapters.safetensors", False, scale, kind == "dora", base)


def _peft(folder: Path, content: Mapping[str, Any]) -> AdapterConfig:
    kind = content["peft_type"]
    if kind != "LORA":
        raise _refused(f"{folder} is an adapter of the type {_shown(kind)}; lmx serves LORA")
    for key, plain in _OTHERWISE.items():
        if content.get(key) not in plain:
            raise _refused(
                f"{folder / CONFIG_NAME} sets {key}, which lmx doesn't serve: merge the adapter "
                "into its model with PEFT, and make the merged folder the source of a model of "
                "its own"
            )
    rank, alpha = _number(content.get("r")), _number(content.get("lora_alpha"))
    if rank is None or alpha is None or rank < 1:
        raise _refused(f"{folder / CONFIG_NAME} has no r and lora_alpha: fetch the adapter again")
    scale = alpha / (math.sqrt(rank) if content.get("use_rslora") is True else rank)
    dora = content.get("use_dora") is True
    base = _name(content.get("base_model_name_or_path"))
    return AdapterConfig(folder / "adapter_model.safetensors", True, scale, dora, base)


def _no_adapter(folder: Path) -> OperationError:
    if (folder / "config.json").is_file():
        return _refused(
            f"{folder} is a whole model and no adapter: make it the source of a model of its own"
        )
    return _refused(
        f"{folder} has no {CONFIG_NAME}: name a folder that `mlx_lm.lora` or PEFT has written"
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's integers have no end, and floats have one.
        return None


def _name(value: Any) -> str | None:
    return value[:_LONGEST_NAME] if isinstance(value, str) and value.isprintable() else None


def _shown(value: Any) -> str:
    return repr(value)[:_LONGEST_NAME]


def _refused(message: str) -> OperationError:
    return OperationError(ErrorCode.MODEL_SOURCE_INVALID, message)
