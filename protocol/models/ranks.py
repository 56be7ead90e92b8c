"""Which models can be divided among several processes (*ranks*), and how. This module is pure.

With tensor parallelism each rank has a part of every layer: its attention heads, and its share of
the inner size. With pipelining each rank has some of the layers, whole.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import CheckpointConfig, count
from lmx.protocol.states import ModelKind

MOST_RANKS: Final = 8


class Parallel(StrEnum):
    """How a model is divided among its ranks."""

    AUTO = "auto"
    """By tensors where the model can, else by layers."""
    TENSOR = "tensor"
    PIPELINE = "pipeline"


_BOTH: Final = frozenset({Parallel.TENSOR, Parallel.PIPELINE})
_TENSOR: Final = frozenset({Parallel.TENSOR})

DIVISIBLE: Final[Mapping[str, frozenset[Parallel]]] = {
    "glm4_moe": _BOTH,
    "gpt_oss": _TENSOR,
    "llama": _TENSOR,
    "minimax": _TENSOR,
    "minimax_m2": _TENSOR,
    "ministral3": _TENSOR,
    "mistral": _TENSOR,
    "qwen2": _BOTH,
    "qwen3": _TENSOR,
    "qwen3_moe": _BOTH,
}
"""How the models of each type were tried: two ranks made the tokens that one process makes. The
classes of mlx-lm 0.32.2 divide more types.

Every rank must keep as much of a prompt as the others do, in bytes: all evict the same prompts
then. So a model is divided by layers only if its layers' caches are all alike."""


def parallel_of(
    config: CheckpointConfig, kind: ModelKind, ranks: int, wanted: Parallel = Parallel.AUTO
) -> Parallel:
    """Return how a model is divided among this many ranks.

    Raises :class:`OperationError` with CONFIG_INVALID, in a sentence, for one that can't be.
    """
    if kind is not ModelKind.CHAT:
        raise _refused(
            f"ranks: {ranks} is for models that write, and this one is for {kind.value}: leave "
            "`ranks` out"
        )
    ways = DIVISIBLE.get(config.model_type, frozenset())
    if not ways:
        raise _refused(
            f"lmx can't divide a model of the type {config.model_type!r} among {ranks} ranks: only "
            f"{', '.join(sorted(DIVISIBLE))}. Leave `ranks` out, or serve one of those types"
        )
    if wanted is not Parallel.AUTO and wanted not in ways:
        raise _refused(
            f"a model of the type {config.model_type!r} can't be divided with parallel: "
            f"{wanted.value}: set `parallel` to {' or '.join(sorted(way.value for way in ways))}"
        )
    problems: dict[Parallel, str] = {}
    for way in (Parallel.TENSOR, Parallel.PIPELINE):
        if way not in ways or wanted not in (Parallel.AUTO, way):
            continue
        problem = _problem(config, ranks, way)
        if problem is None:
            return way
        problems[way] = problem
    said = "; ".join(f"with parallel: {way.value}, {why}" for way, why in problems.items())
    raise _refused(f"the model can't be divided among {ranks} ranks: {said}. Change `ranks`")


def _problem(config: CheckpointConfig, ranks: int, way: Parallel) -> str | None:
    """Return what doesn't divide, for people; None: everything does."""
    if way is Parallel.PIPELINE:
        if config.layers % ranks:
            return f"its {config.layers} layers don't divide by {ranks}"
        return None
    text, heads = config.text, config.attention_heads
    inner = {
        "intermediate_size": count(text, "intermediate_size"),
        "moe_intermediate_size": count(text, "moe_intermediate_size"),
    }
    parts = {
        "attention heads": heads,
        "key-value heads": count(text, "num_key_value_heads") or heads,
    }
    for name, number in parts.items():
        if number % ranks:
            return f"its {number} {name} don't divide by {ranks}"
    # What is quantized divides into whole groups.
    group = _group_size(config)
    for name, number in inner.items():
        if number % (ranks * group):
            groups = f" into groups of {group}" if group > 1 else ""
            return f"its {name} of {number} doesn't divide by {ranks}{groups}"
    width = count(text, "head_dim") or (config.hidden_size // heads if heads else 0)
    if heads * width % (ranks * group):
        return f"its attention of {heads * width} doesn't divide by {ranks} into groups of {group}"
    return None


def _group_size(config: CheckpointConfig) -> int:
    settings = config.whole.get("quantization") or config.whole.get("quantization_config")
    return count(settings, "group_size") or 1 if isinstance(settings, Mapping) else 1


def _refused(message: str) -> OperationError:
    return OperationError(ErrorCode.CONFIG_INVALID, message + ".", param="ranks")
