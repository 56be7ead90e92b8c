"""Quantizes a model folder with the functions of the library whose class the model is."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm import utils as lm
from mlx_vlm import quant_utils as vlm_quantization
from mlx_vlm import utils as vlm
from mlx_vlm.convert import mixed_quant_predicate_builder

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.models.checkpoint import CONFIG_LIMIT_BYTES, INDEX_NAME, read_checkpoint_config
from lmx.protocol.states import QuantizedBits
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.patches.mlx_lm import classes_of
from lmx.worker.mlx.model.readable import FolderChanges, readable

GROUP_WEIGHTS: Final = 64
RECIPE: Final = "mixed_4_6"
"""Of mlx-vlm: 4 bits, and 6 for the embeddings, for the output, and for the values and the last
matrices of the feed-forward parts in half of the layers. That of mlx-lm knows no output that is the
embeddings, as small models have it."""

_Predicate = Callable[[str, Any], Any]
"""Takes a weight's path and its module. Returns whether it is quantized, or how."""

_KEPT: Final = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "README.md")
"""What a folder has besides weights and is copied as it is."""


def quantize_folder(
    source: Path, target: Path, bits: QuantizedBits, advanced: Callable[[float], None]
) -> float:
    """Make the folder ``target`` of the one of an unquantized model, and return how many bits a
    weight of it has on average. ``advanced`` takes the share that is done.

    Pictures and sounds are encoded by weights that stay as they are. What is not quantized, and the
    scales, are what this machine computes with: bfloat16 on a GPU, float32 on a CPU. All weights of
    the result are in memory before they are written.

    Raises :class:`OperationError`, and what :func:`lmx.worker.mlx.model.library.open_checkpoint`
    raises.
    """
    config = read_checkpoint_config(source)
    library = open_checkpoint(source, config).library
    shown, _, _ = readable(source, config, FolderChanges())
    text = library == "mlx-lm"
    if text:
        model, _ = lm.load_model(shown, lazy=True, get_model_classes=classes_of)
    else:
        model = vlm.load_model(shown, lazy=True)
    count: int = sum(array.size for _, array in tree_flatten(model.parameters()))
    _set_types(model)
    written = parse_json(read_regular(source / "config.json", CONFIG_LIMIT_BYTES))
    model, written = _quantized(model, written, bits, text=text)
    size = _evaluate(model, advanced)
    target.mkdir()
    if text:
        lm.save_model(target, model, donate_model=True)
    else:
        vlm.save_weights(target, model, donate_weights=True)
    (target / "config.json").write_text(json.dumps(written, indent=1))
    _copy_others(source, target)
    return 8 * size / max(count, 1)


def _set_types(model: Any) -> None:
    kind = mx.bfloat16 if on_gpu() else mx.float32
    castable = getattr(model, "cast_predicate", lambda _: True)

    def cast(name: str, array: mx.array) -> mx.array:
        if castable(name) and mx.issubdtype(array.dtype, mx.floating):
            return array.astype(kind)
        return array

    model.update(tree_map_with_path(cast, model.parameters()))


def _quantized(
    model: Any, config: Mapping[str, Any], bits: QuantizedBits, *, text: bool
) -> tuple[Any, dict[str, Any]]:
    recipe = None
    if bits is QuantizedBits.MIXED:
        try:
            recipe = mixed_quant_predicate_builder(RECIPE, model)
        except ValueError as error:
            raise OperationError(
                ErrorCode.CONVERSION_FAILED,
                f"the recipe {RECIPE} does not know the layers of this model ({error}): quantize "
                "it to 4 or 8 bits",
            ) from error
    width = 4 if recipe else int(bits)
    predicate = _predicate(getattr(model, "quant_predicate", None), recipe)
    quantize = lm.quantize_model if text else vlm_quantization.quantize_model
    quantized: tuple[Any, dict[str, Any]] = quantize(
        model, config, GROUP_WEIGHTS, width, quant_predicate=predicate
    )
    if not any(name.endswith(".scales") for name, _ in tree_flatten(model.parameters())):
        raise OperationError(
            ErrorCode.CONVERSION_FAILED,
            f"no weights of this model can be quantized: none has rows of a multiple of "
            f"{GROUP_WEIGHTS} numbers",
        )
    return quantized


def _predicate(own: _Predicate | None, recipe: _Predicate | None) -> _Predicate:
    """Return what is done with each weight. What a model's class says comes first: most of those
    with experts keep their routers at 8 bits."""

    def predicate(name: str, module: Any) -> Any:
        if vlm.skip_multimodal_module(name):
            return False
        found = True if own is None else own(name, module)
        if recipe is None or not found or isinstance(found, dict):
            return found
        return recipe(name, module)

    return predicate


def _evaluate(model: Any, advanced: Callable[[float], None]) -> int:
    """Compute the weights one by one, so that those that they are made from are not all in memory.
    Returns their size in bytes."""
    arrays = [array for _, array in tree_flatten(model.parameters())]
    total: int = sum(array.nbytes for array in arrays)
    done = 0
    for array in arrays:
        mx.eval(array)
        done += array.nbytes
        mx.clear_cache()
        advanced(done / total)
    return total


def _copy_others(source: Path, target: Path) -> None:
    for pattern in _KEPT:
        for file in source.glob(pattern):
            if file.name not in (INDEX_NAME, "config.json") and not file.name.startswith("."):
                shutil.copyfile(file, target / file.name)
