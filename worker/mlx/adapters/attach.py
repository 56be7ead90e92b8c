"""Reads adapters and attaches them to a model in memory. An adapter that doesn't fit is left out,
and the model serves without it.

mlx-lm and mlx-vlm name a layer's matrices ``lora_a``, ``lora_b`` and ``m``. PEFT's have other
names, and are transposed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import AdapterSpec
from lmx.protocol.models.adapter import CONFIG_NAME, AdapterConfig, read_adapter_config
from lmx.worker.mlx.adapters.layers import (
    ActiveAdapter,
    LayerChanges,
    LayerMatrices,
    LowRankChange,
    can_change,
    changes_of,
    matrix_shapes,
    plain_weight,
)

log = structlog.get_logger()

_TRIAL: Final = "\0trial"
"""No adapter's id: active while it is tried which layers a model really calls."""

Run = Callable[[str, int], None]
"""Runs the model with an adapter of this id on this many tokens. Lazy: what it computes is never
evaluated."""

_RUNS: Final = (1, 2)
"""A model may compute a single token in another way than several."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of a model."""

    problems: Mapping[str, str | None] = field(default_factory=dict)
    """All of them by id, each with the reason why it can't be used; None where it can."""

    digests: Mapping[str, str] = field(default_factory=dict)
    """A hash of each adapter that can be used, which changes with its files."""

    def prefix_salt(self, adapter_id: str, salt: str) -> str:
        """Return the salt of a row's computed prefixes: another one for each adapter, because what
        they compute differs. No salt of a request is ever one that is made here."""
        if adapter_id:
            return f"\0a{self.digests[adapter_id]}{salt}"
        return f"\0b{salt}" if salt.startswith("\0") else salt


def attach_adapters(
    model: Any, specs: Sequence[AdapterSpec], active: ActiveAdapter, run: Run
) -> Adapters:
    """Attach adapters to the language part of a model, whose layers apply the ``active`` one from
    then on. Blocks until their matrices are in memory. Engine thread.

    Raises nothing for an adapter that can't be used: that is a ``problem``, and is logged.
    """
    layers = {
        layer_name(name): layer for name, layer in model.language_model.named_modules() if name
    }
    problems: dict[str, str | None] = {}
    digests: dict[str, str] = {}
    for spec in specs:
        folder = Path(spec.path)
        try:
            if spec.problem is not None:
                raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, spec.problem)
            config = read_adapter_config(folder)
            digests[spec.adapter_id] = _digest(folder, config)
            _attach(spec.adapter_id, config, layers, active, run)
        except (OperationError, OSError) as error:
            problem = error.message if isinstance(error, OperationError) else str(error)
            problems[spec.adapter_id] = problem
            log.error("adapter.refused", adapter=spec.adapter_id, error=problem)
        else:
            problems[spec.adapter_id] = None
            log.info("adapter.attached", adapter=spec.adapter_id)
    return Adapters(problems, digests)


def _attach(
    adapter_id: str,
    config: AdapterConfig,
    layers: Mapping[str, Any],
    active: ActiveAdapter,
    run: Run,
) -> None:
    changes: dict[str, LowRankChange] = {}
    for name, matrices in read_matrices(config).items():
        layer = layers.get(name)
        _check(config, name, layer, matrices)
        weight = plain_weight(layer) if config.dora else None
        changes[name] = change = LowRankChange(matrices, config.scale, weight)
        # One by one, because of the layer's weights that DoRA needs.
        mx.eval(change.arrays)
    changed = {name: changes_of(layers[name], active) for name in changes}
    for name in _uncalled(changed, run):
        if not changes[name].is_nothing:
            raise _refused(
                config,
                f"it changes {name}, which this model computes in a way that no adapter can "
                "change: fuse the adapter with the model, and make the fused folder the source "
                "of a model of its own",
            )
    for name, change in changes.items():
        changed[name].by_adapter[adapter_id] = change


def _check(config: AdapterConfig, name: str, layer: Any, matrices: LayerMatrices) -> None:
    if layer is None:
        raise _refused(
            config, f"it changes {name}, which the model doesn't have: {_of_another(config)}"
        )
    if not can_change(layer, dora=config.dora):
        kind = "DoRA" if config.dora else "LoRA"
        raise _refused(
            config,
            f"it changes {name}, a {type(layer).__name__}, for which lmx has no {kind}: fuse it "
            "with its model, and make the fused folder the source of a model of its own",
        )
    given = tuple(matrices.a.shape), tuple(matrices.b.shape)
    rank = matrices.a.shape[1] if matrices.a.ndim > 1 else 0
    needed = matrix_shapes(layer, rank)
    outputs = needed[1][-1]
    fits = given == needed and (matrices.m is None or matrices.m.shape == (outputs,))
    if not fits or rank == 0:
        raise _refused(
            config,
            f"its matrices for {name} are {given[0]} and {given[1]}, and this model needs "
            f"{needed[0]} and {needed[1]}: {_of_another(config)}",
        )


def _of_another(config: AdapterConfig) -> str:
    base = "" if config.base is None else f", by its configuration of {config.base}"
    return f"it is of another model{base}"


class _Seen:
    """A change that notes that its layer was called, and changes nothing."""

    def __init__(self) -> None:
        self.called = False

    def linear(self, layer: Any, x: mx.array, y: mx.array) -> mx.array:
        self.called = True
        return y

    def experts(self, x: mx.array, y: mx.array, indices: mx.array, *, by_expert: bool) -> mx.array:
        self.called = True
        return y

    def embedding(self, tokens: mx.array, y: mx.array) -> mx.array:
        self.called = True
        return y

    def logits(self, x: mx.array, y: mx.array) -> mx.array:
        self.called = True
        return y


def _uncalled(changed: Mapping[str, LayerChanges], run: Run) -> set[str]:
    """Return the layers that the model does not call each time: it reads their weights itself, has
    compiled what calls them, or does not use them."""
    found: set[str] = set()
    for tokens in _RUNS:
        run(_TRIAL, tokens)  # What is compiled is compiled here.
        seen = {name: _Seen() for name in changed}
        for name, changes in changed.items():
            changes.by_adapter[_TRIAL] = seen[name]
        run(_TRIAL, tokens)
        for changes in changed.values():
            del changes.by_adapter[_TRIAL]
        found.update(name for name, layer in seen.items() if not layer.called)
    return found


def _digest(folder: Path, config: AdapterConfig) -> str:
    stat = config.weights.stat()
    weights = [str(config.weights.resolve()), stat.st_size, stat.st_mtime_ns]
    content = (folder / CONFIG_NAME).read_bytes()
    identity = json.dumps([weights, hashlib.sha256(content).hexdigest()])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


_WRAPPERS: Final = frozenset(
    {"backbone", "base_model", "inner", "language_model", "model", "text_model", "transformer"}
)
"""What the names of a model's layers may begin with. Each library wraps a model in other ones."""

_MLX: Final = re.compile(r"(?P<layer>.+)\.(?P<leaf>lora_a|lora_b|m)")
_PEFT: Final = re.compile(
    r"(?P<layer>.+)\.lora_(?P<leaf>A|B|embedding_A|embedding_B|magnitude_vector)(\.weight)?"
)
_LEAVES: Final = {
    "A": "lora_a",
    "B": "lora_b",
    "embedding_A": "lora_a",
    "embedding_B": "lora_b",
    "magnitude_vector": "m",
}


class _Tensor(NamedTuple):
    layer: str
    leaf: str
    array: mx.array


def layer_name(name: str) -> str:
    """Return a layer's name without what wraps the model: ``layers.0.self_attn.q_proj``."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return ".".join(parts)


def read_matrices(config: AdapterConfig) -> dict[str, LayerMatrices]:
    """Read an adapter's weights, by the names of the layers as :func:`layer_name` gives them.
    Lazy: they are evaluated with the first that is computed of them.

    Raises :class:`OperationError` for a file that is not an adapter's weights.
    """
    try:
        loaded = mx.load(str(config.weights))
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(config, f"it can't be read ({error}): fetch the adapter again") from error
    assert isinstance(loaded, dict)
    found: dict[str, dict[str, mx.array]] = {}
    for name, array in loaded.items():
        tensor = _tensor(config, name, array)
        found.setdefault(tensor.layer, {})[tensor.leaf] = tensor.array
    if not found:
        raise _refused(config, "it is empty: fetch the adapter again")
    return {layer: _whole(config, layer, leaves) for layer, leaves in found.items()}


def _tensor(config: AdapterConfig, name: str, array: mx.array) -> _Tensor:
    match = (_PEFT if config.peft else _MLX).fullmatch(name)
    if match is None:
        raise _refused(
            config,
            f"it has {name[:200]!r}, which is none of an adapter's matrices: fuse the adapter with "
            "its model, and make the fused folder the source of a model of its own",
        )
    leaf = match["leaf"]
    if config.peft and array.ndim == 2:
        array = array.T
    return _Tensor(layer_name(match["layer"]), _LEAVES.get(leaf, leaf), array)


def _whole(config: AdapterConfig, layer: str, leaves: Mapping[str, mx.array]) -> LayerMatrices:
    needed = {"lora_a", "lora_b"} | ({"m"} if config.dora else set())
    if leaves.keys() != needed:
        raise _refused(
            config,
            f"it has {', '.join(sorted(leaves))} for {layer}, in place of "
            f"{', '.join(sorted(needed))}: fetch the adapter again",
        )
    return LayerMatrices(leaves["lora_a"], leaves["lora_b"], leaves.get("m"))


def _refused(config: AdapterConfig, problem: str) -> OperationError:
    return OperationError(ErrorCode.MODEL_SOURCE_INVALID, f"{config.weights}: {problem}")
