"""A model folder opened by the library that can: mlx-lm where there is text alone, else mlx-vlm.

Both know most types of models, and each knows some that the other doesn't, or gets wrong. What
``mlx_lm.convert`` writes of a model with a vision or audio encoder has neither their weights nor
their configuration, which mlx-vlm asks for.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog
from mlx_lm.chat_templates import deepseek_v32
from mlx_lm.utils import MODEL_REMAPPING
from mlx_vlm.utils import load_config, load_model, load_processor, resolve_eos_token_ids
from transformers import AutoTokenizer

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import (
    CheckpointConfig,
    read_checkpoint_config,
    weight_files,
)
from lmx.protocol.models.media import media_kinds, of_media
from lmx.protocol.models.safetensors import file_tensors, read_tensors
from lmx.protocol.states import ModelKind
from lmx.worker.media.values import MediaNeeds
from lmx.worker.mlx.device.cpu import tables
from lmx.worker.mlx.media.processor import media_needs
from lmx.worker.mlx.memory.windows import window_keys
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.guard import forbid_checkpoint_code, needs_code
from lmx.worker.mlx.model.inexact import allowed, known_inexact
from lmx.worker.mlx.model.patches.mlx_vlm import patch_mlx_vlm
from lmx.worker.mlx.model.readable import FolderChanges, readable
from lmx.worker.mlx.model.text_model import TextModel, load_text_model
from lmx.worker.mlx.model.unread import unread_remarks
from lmx.worker.scheduling.engine_errors import is_device_failure, is_out_of_memory
from lmx.worker.templates.deepseek_v32 import template_of_deepseek_v32

log = structlog.get_logger()

_BETTER_BY_VLM: Final = frozenset({"falcon_mamba", "mamba", "qwen3_5", "qwen3_5_moe"})
"""Types that both libraries know, and that mlx-vlm's class is tried first for. In mlx-lm Mamba
works with mlx-lm's own caches alone, and Qwen 3.5 takes no tokens back: it couldn't speculate."""

_UNFIT: Final = (
    *(ArithmeticError, AssertionError, AttributeError, FileNotFoundError, ImportError),
    *(LookupError, NotImplementedError, TypeError, ValueError),
)
"""What the libraries raise for a folder that they can't make a model of, and what their classes
raise for a token that they can't take."""

_UNFIT_TOKENIZER: Final = (*_UNFIT, OSError)
_UNFIT_WEIGHTS: Final = re.compile(r"^(Missing|Received) \d+ parameters|^Expected shape")
_NEEDS_METAL: Final = re.compile(r"^\[\w+\] No Metal back-end")
"""What mlx raises, in a ``RuntimeError``, where a class has kernels for a Mac's GPU alone."""
_UNKNOWN: Final = re.compile(r"^Model type \S+ not supported")
_LONGEST_MESSAGE: Final = 200


class Checkpoint(NamedTuple):
    """A folder's model, its weights not read yet, and its tokenizer."""

    forward: Forward
    """Of a model with ``language_model`` and ``get_input_embeddings``, as mlx-vlm's models."""

    tokenizer: Any
    end_ids: frozenset[int]
    """The tokens that end an answer."""

    library: str
    """Whose class the model is: ``mlx-lm`` or ``mlx-vlm``."""

    processor: Any = None
    """What makes pictures and sounds ready for the model; None for a model of text alone."""

    media: MediaNeeds | None = None
    """What the model takes besides text."""

    remarks: tuple[str, ...] = ()
    """Why its answers may differ from what the model was made for."""

    config: Mapping[str, Any] = MappingProxyType({})
    """The config.json that the class was given, which may depend on the context."""

    @property
    def model(self) -> Any:
        """The model itself."""
        return self.forward.model


def open_checkpoint(
    folder: Path,
    config: CheckpointConfig | None = None,
    *,
    allow_code: bool = False,
    changes: FolderChanges | None = None,
) -> Checkpoint:
    """Open a folder whose model writes. ``config``: its config.json; None: it is read.
    ``allow_code``: its tokenizer's own code may run.

    Raises :class:`OperationError` for one that can't be loaded as it is, or whose model can't take
    a token; ``AttributeError`` for a model of another kind; and whatever a device, or a memory,
    that fails makes the libraries raise, as ``OSError`` and ``RuntimeError`` for files that can't
    be read.
    """
    if not allow_code:
        forbid_checkpoint_code()
    config = config or read_checkpoint_config(folder)
    changes = changes or FolderChanges()
    tensors = [tensor.name for tensor in read_tensors(folder, ModelKind.CHAT)]
    _refuse_doubles(folder, tensors)
    remarks: tuple[str, ...] = ()
    if problem := known_inexact(config.model_type, tensors):
        remarks = (allowed(problem, changes.allow_inexact),)
    shown, whole, differing = readable(folder, config, changes)
    remarks += differing
    text_only = not any(map(of_media, tensors))
    errors: list[Exception] = []
    for load in _loaders(config, text_only=text_only):
        try:
            forward = Forward(load(shown))
        except (*_UNFIT, RuntimeError) as error:
            if not _is_refusal(error):
                raise
            log.info("model.library_refused", library=load.__module__, reason=_described(error))
            errors.append(error)
            continue
        except SystemExit:
            # OLMo's module does that where a package is missing that is not one of lmx's.
            reason = "its code needs a package that lmx doesn't bring along"
            log.info("model.library_refused", library=load.__module__, reason=reason)
            errors.append(ImportError(reason))
            continue
        tables.share_freqs(forward.model)
        library = "mlx-lm" if isinstance(forward.model, TextModel) else "mlx-vlm"
        tokenizer, end_ids, processor = _open_tokenizer(
            folder, shown, forward.model, text_only=text_only, allow_code=allow_code
        )
        if changes.chat_template is None:
            _apply_named_template(tokenizer)
        # mlx-lm's models get what lmx reads.
        read = window_keys(config.model_type) if library == "mlx-lm" else ()
        remarks += unread_remarks(whole, _class_of(forward.model), read)
        opened = Checkpoint(forward, tokenizer, end_ids, library, remarks=remarks, config=whole)
        if text_only or processor is None:
            return opened
        needs = media_needs(processor, config.model_type, media_kinds(config, tensors))
        return opened._replace(processor=processor, media=needs)
    raise _refused(folder, config, errors) from errors[-1]


def _apply_named_template(tokenizer: Any) -> None:
    """Give the tokenizer the template that its ``chat_template_type`` names, if it is one of
    mlx-lm's programs that lmx has as a template. It goes before the folder's own, as in mlx-lm."""
    if getattr(tokenizer, "init_kwargs", {}).get("chat_template_type") != "deepseek_v32":
        return
    place = "<lmx>"
    before, _, after = deepseek_v32.render_tools([place]).partition(deepseek_v32.to_json(place))
    tokenizer.chat_template = template_of_deepseek_v32(
        deepseek_v32.bos_token, deepseek_v32.eos_token, (before, after)
    )


def _class_of(model: Any) -> str:
    """Return the module of a model's class."""
    own = model.language_model.inner if isinstance(model, TextModel) else model
    return type(own).__module__


def _refuse_doubles(folder: Path, tensors: Sequence[str]) -> None:
    double, times = Counter(tensors).most_common(1)[0] if tensors else ("", 1)
    if times == 1:
        return
    files = [
        file.name
        for file in weight_files(folder, ModelKind.CHAT)
        if any(tensor.name == double for tensor in file_tensors(file)[0])
    ]
    raise OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"{' and '.join(files[:2])} in {folder} both have the weights {double[:80]!r}: keep the "
        "file that belongs to config.json.",
    )


def _loaders(config: CheckpointConfig, *, text_only: bool) -> list[Callable[[Path], Any]]:
    if not text_only or not _known_to_lm(config):
        return [_load_vlm]
    if config.model_type in _BETTER_BY_VLM:
        return [_load_vlm, load_text_model]
    return [load_text_model, _load_vlm]


def _load_vlm(folder: Path) -> Any:
    model = load_model(folder, lazy=True)
    patch_mlx_vlm(model)
    return model


def _is_refusal(error: Exception) -> bool:
    """Return whether another try would end in the same error. A model of another kind is left to
    the caller, who knows which is wanted."""
    if is_device_failure(error) or is_out_of_memory(error):
        return False
    if isinstance(error, AttributeError):
        return error.name != "language_model"
    return isinstance(error, _UNFIT) or bool(_NEEDS_METAL.search(str(error)))


def _known_to_lm(config: CheckpointConfig) -> bool:
    # Its modules are named as the types are, capitals included.
    name = str(config.whole.get("model_type"))
    name = MODEL_REMAPPING.get(name, name)
    return name.isprintable() and "." not in name and find_spec(f"mlx_lm.models.{name}") is not None


def _open_tokenizer(
    folder: Path, shown: Path, model: Any, *, text_only: bool, allow_code: bool
) -> tuple[Any, frozenset[int], Any]:
    """Return a folder's tokenizer, the tokens that end an answer, and the processor, if it has
    one. They are read from ``shown``; errors name ``folder``."""
    named = load_config(shown).get("eos_token_id")
    options = {"trust_remote_code": allow_code}
    if not isinstance(model, TextModel):
        try:
            processor = load_processor(shown, eos_token_ids=named, **options)
            return *_of_processor(processor), processor
        except _UNFIT_TOKENIZER as error:
            if not text_only:
                raise _refused_processor(folder, error, options) from error
            # A processor of images, whose settings the folder doesn't have.
            log.info("model.no_processor", reason=_described(error))
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(shown), **options)
    except _UNFIT_TOKENIZER as error:
        raise _refused_tokenizer(folder, error) from error
    return tokenizer, frozenset(resolve_eos_token_ids(named, tokenizer)), None


def _of_processor(processor: Any) -> tuple[Any, frozenset[int]]:
    tokenizer = getattr(processor, "tokenizer", processor)
    if not tokenizer.chat_template:
        template = getattr(processor, "chat_template", None)
        # Kimi K3's processor has the name of Python code in its place.
        tokenizer.chat_template = template if "{" in str(template) else None
    return tokenizer, frozenset(tokenizer.stopping_criteria.eos_token_ids)


def _refused_tokenizer(folder: Path, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return error  # Of the disk, and not of what is on it.
    if "trust_remote_code" in str(error):
        return needs_code(f"that of its tokenizer, in {folder}")
    return OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"The tokenizer in {folder} can't be loaded ({_described(error)}): fetch the model again, "
        "with its tokenizer's files, or choose another conversion of it.",
    )


def _refused_processor(folder: Path, error: Exception, options: dict[str, Any]) -> Exception:
    """Return what to say of a folder whose processor can't be loaded, of which its tokenizer is a
    part."""
    try:
        AutoTokenizer.from_pretrained(str(folder), **options)
    except _UNFIT_TOKENIZER:
        return _refused_tokenizer(folder, error)
    if isinstance(error, OSError):
        return _refused_tokenizer(folder, error)
    return OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"mlx-vlm {version('mlx-vlm')} can't load what makes images and sounds ready for the model "
        f"in {folder} ({_described(error)}): choose another conversion of it, or try a newer lmx.",
    )


def _refused(folder: Path, config: CheckpointConfig, errors: Sequence[Exception]) -> OperationError:
    """Return what to say of a folder that no library opens. It stays so until its files change."""
    name = config.model_type
    known = [error for error in errors if not _UNKNOWN.search(str(error))]
    if not name:
        problem = f"{folder / 'config.json'} names no model_type"
        advice = "fetch the model again"
    elif not known:
        problem = (
            f"lmx has no model of the type {name!r}: neither mlx-lm {version('mlx-lm')} nor "
            f"mlx-vlm {version('mlx-vlm')} knows it"
        )
        advice = "choose a model of another architecture, or try a newer lmx"
    elif any(_NEEDS_METAL.search(str(error)) for error in known):
        problem = f"The model in {folder}, of the type {name!r}, runs on a Mac's GPU alone"
        advice = "serve it on a Mac, or choose a model of another architecture"
    elif all(str(error).startswith("Received") for error in known):
        problem = (
            f"The weights in {folder} have names that the engine's class of the type {name!r} "
            f"does not know ({_first_line(str(known[0]))})"
        )
        advice = "choose another conversion of it, or try a newer lmx"
    elif all(_UNFIT_WEIGHTS.search(str(error)) for error in known):
        problem = (
            f"The weights in {folder} are not those that its config.json describes "
            f"({_first_line(str(known[0]))})"
        )
        advice = "fetch the model again, or choose another conversion of it"
    elif isinstance(known[-1], FileNotFoundError):
        problem = f"{folder} is not complete ({_first_line(str(known[-1]))})"
        advice = "fetch the model again, with its *.safetensors"
    else:
        reasons = "; ".join(dict.fromkeys(map(_described, known)))
        problem = f"{folder} can't be loaded as a model of the type {name!r} ({reasons})"
        advice = "choose another conversion of it, or try a newer lmx"
    return OperationError(ErrorCode.MODEL_SOURCE_INVALID, f"{problem}: {advice}.")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    line = next(iter(text.strip().splitlines()), "").rstrip(": .")
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]} ..."
