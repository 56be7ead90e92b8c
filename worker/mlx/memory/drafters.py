"""Which model folders are drafters, and what a drafter keeps of a sequence, by config.json. Pure.

A drafter works from the hidden states of another model
(:mod:`lmx.worker.mlx.drafting.hidden_state_drafter`). mlx-vlm 0.7.10 recognizes drafters by the
same names.
"""

from enum import Enum
from typing import Any, Final

from lmx.protocol.models.checkpoint import CheckpointConfig, count
from lmx.protocol.models.memory import KvLayers

OBSERVED_TOKENS: Final = 1024
"""Of how many of a prompt's last tokens a drafter gets the hidden states. Those of a whole prompt
take a fifth of its keys and values (EAGLE-3 with an 8B model: 2.3 GiB for 100,000 tokens), and the
drafter would have to read them all before its first draft."""

_KEPT_TOKENS: Final = 2 * OBSERVED_TOKENS
"""So many tokens' hidden states wait for a drafter at most."""

_STEP_TOKENS: Final = 256
_EAGLE_LAYERS: Final = 3

_BLOCK_TYPES: Final = frozenset(
    {"dspark", "gemma4_dspark", "qwen3_dspark", "deepseek_v4_dspark", "muse_glimmer_assistant"}
)
_BLOCK_CLASSES: Final = frozenset({"DFlash2DraftModel", "Gemma4DSparkModel"})
_HEADS: Final = ("_mtp", "_assistant")


class DrafterKind(Enum):
    """How a drafter works."""

    MTP = "mtp"
    """Heads for further tokens, which take the hidden states that the model's own head takes."""

    EAGLE3 = "eagle3"
    """A layer or two, which take the hidden states of three layers."""

    DFLASH = "dflash"
    """A small model that drafts a block of tokens in one pass from those of several layers."""


def drafter_type(config: CheckpointConfig) -> str:
    """Return the type that a folder says it is; drafters of one source name it differently."""
    named = config.whole.get("speculators_model_type")
    return config.model_type or (named.lower() if isinstance(named, str) else "")


def drafter_kind(config: CheckpointConfig) -> DrafterKind | None:
    """Return what kind of drafter a folder holds; None: it is no drafter."""
    name = drafter_type(config)
    if (
        config.whole.get("dflash_config")
        or name in _BLOCK_TYPES
        or _BLOCK_CLASSES & set(config.architectures)
    ):
        return DrafterKind.DFLASH
    if name == "eagle3":
        return DrafterKind.EAGLE3
    return DrafterKind.MTP if name.endswith(_HEADS) else None


def head_layers(config: CheckpointConfig) -> int:
    """Return how many layers the heads for further tokens have: a folder of such heads describes
    the layers of the model that they belong to. 0: it holds none."""
    if drafter_kind(config) is not DrafterKind.MTP:
        return 0
    return count(config.text, "mtp_num_hidden_layers", "num_nextn_predict_layers") or 1


def hidden_state_layers(config: CheckpointConfig, element_bytes: int) -> tuple[KvLayers, ...]:
    """Return what the hidden states that wait for a drafter take; nothing for other models."""
    kind = drafter_kind(config)
    if kind is None or not config.hidden_size:
        return ()
    layers = {DrafterKind.MTP: 1, DrafterKind.EAGLE3: _EAGLE_LAYERS}.get(kind) or _observed(config)
    width = layers * (count(config.whole, "target_hidden_size") or config.hidden_size)
    return (KvLayers(1, width * element_bytes, _KEPT_TOKENS, 0, _STEP_TOKENS),)


def _observed(config: CheckpointConfig) -> int:
    own: Any = config.whole.get("dflash_config")
    sections = (own if isinstance(own, dict) else {}, config.whole)
    named = (section.get("target_layer_ids") for section in sections)
    return next((len(each) for each in named if isinstance(each, list)), 1)
