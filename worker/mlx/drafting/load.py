"""Which drafter a model gets, and the loading of drafters: what doesn't fit its model is refused.

Written for mlx-vlm 0.7.10.
"""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
import structlog
from mlx_vlm.speculative.drafters import load_drafter, validate_drafter_compatibility
from mlx_vlm.speculative.drafters.mtp_split import detect_mtp_splitter
from mlx_vlm.speculative.utils import speculative_prefill_kwargs

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import SpeculationSpec
from lmx.protocol.models.checkpoint import drafter_folder, read_checkpoint_config
from lmx.worker.mlx.drafting.draft_model import load_draft
from lmx.worker.mlx.drafting.hidden_state_drafter import HiddenStateDrafter
from lmx.worker.mlx.drafting.prompt_lookup import LookupDrafter
from lmx.worker.mlx.drafting.token_drafter import TokenDrafter
from lmx.worker.mlx.memory.drafters import DrafterKind, drafter_kind, drafter_type
from lmx.worker.mlx.model.folder import read_folder
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.hidden import HiddenStates, HiddenTap, last_norm, layer_modules
from lmx.worker.mlx.model.load import LoadedModel, evaluate
from lmx.worker.mlx.model.text_model import TextModel
from lmx.worker.scheduling.engine_errors import UNFIT, is_device_failure

log = structlog.get_logger()

_UNUSED: Final = frozenset(
    {
        *("gemma4_assistant", "gemma4_unified_assistant"),  # They read the model's own caches.
        *("deepseek_v4_mtp", "deepseek_v4_dspark", "inkling_mtp", "qwen4_exp_mtp"),
        "glm4_moe_lite_mtp",  # mlx-vlm can make one, and not run it.
    }
)
"""Types of mlx-vlm's drafters that take something else than hidden states as lmx captures them."""


class FoundDrafter(NamedTuple):
    """What drafts a model's tokens, and its name for people."""

    name: str
    drafter: TokenDrafter


def find_drafter(spec: SpeculationSpec, folder: Path, target: LoadedModel) -> FoundDrafter:
    """Return what there is to draft a model's tokens: what is in the folder ``drafter`` of its
    folder, else its own heads, else prompt lookup. What can't be used is logged and passed over."""
    drafter = drafter_folder(folder)
    found = [] if drafter is None else [("drafter", replace(spec, draft_path=str(drafter)))]
    if (splitter := detect_mtp_splitter(folder)) and splitter.output_model_type not in _UNUSED:
        found.append(("own heads", replace(spec, own_heads=True)))
    for name, one in found:
        try:
            return FoundDrafter(name, make_drafter(one, folder, target))
        except OperationError as error:
            log.warning("speculation.passed_over", what=name, reason=error.message)
        target.forward.tap = None
        gc.collect()
        mx.clear_cache()
    return FoundDrafter("prompt lookup", LookupDrafter(spec.max_ngram_size, sure=True))


def make_drafter(spec: SpeculationSpec, folder: Path, target: LoadedModel) -> TokenDrafter:
    """Return the drafter that a model's configuration asks for. ``folder`` is the model's.

    Raises :class:`OperationError` when it can't be loaded as it is, or can't draft for that model,
    and as :func:`lmx.worker.mlx.model.library.open_checkpoint` does.
    """
    if spec.own_heads:
        _check_heads(folder)
        return _load_drafter(folder, DrafterKind.MTP, target)
    if spec.draft_path is None:
        return LookupDrafter(spec.max_ngram_size)
    draft = Path(spec.draft_path)
    config = read_checkpoint_config(draft)
    kind = drafter_kind(config)
    if kind is None:
        # The configuration that allows code of its own to the model names the draft model too.
        return load_draft(
            draft,
            target.tokenizer,
            target.forward.vocabulary_size,
            allow_code=target.allow_code,
        )
    if (name := drafter_type(config)) in _UNUSED:
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"lmx can't use drafters of the type {name!r}, such as the one in {draft}: choose "
            "another draft model, or method prompt_lookup.",
        )
    return _load_drafter(draft, kind, target)


def _check_heads(folder: Path) -> None:
    """Raise :class:`OperationError` for a model's folder without heads for further tokens."""
    splitter = detect_mtp_splitter(folder)
    if splitter is None or splitter.output_model_type in _UNUSED:
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"{folder} has no heads for further tokens that lmx can use: most conversions leave "
            "them out. Choose a conversion with the weights `mtp.*`, a folder of the heads alone "
            "(method draft_model), or method prompt_lookup.",
        )


def _load_drafter(folder: Path, kind: DrafterKind, target: LoadedModel) -> HiddenStateDrafter:
    read_folder(folder)
    try:
        # Of a model's own folder, it reads the heads alone.
        model, _ = load_drafter(str(folder), lazy=True)
    except (*UNFIT, FileNotFoundError) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise
        if is_device_failure(error):
            raise
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"No drafter can be loaded from {folder} ({_said(error)}): fetch it again, or choose "
            "another conversion of it.",
        ) from error
    evaluate(model)
    inner = target.model.language_model.inner if isinstance(target.model, TextModel) else None
    drafter = HiddenStateDrafter(model, inner or target.model, in_blocks=kind is DrafterKind.DFLASH)
    try:
        validate_drafter_compatibility(drafter.target, model, kind.value)
        target.forward.tap = _tap(model, kind, inner or target.model.language_model)
        _try(drafter, target.forward)
    except (*UNFIT, FileNotFoundError) as error:
        if is_device_failure(error):
            raise
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"The drafter in {folder} does not fit this model ({_said(error)}): choose the one "
            "that was made for it.",
        ) from error
    return drafter


def _tap(model: Any, kind: DrafterKind, language_model: Any) -> HiddenTap:
    if kind is DrafterKind.MTP:
        return HiddenTap([last_norm(language_model)])
    layers = speculative_prefill_kwargs(kind.value, model)["capture_layer_ids"]
    return HiddenTap(layer_modules(language_model, layers))


def _try(drafter: HiddenStateDrafter, forward: Forward) -> None:
    """Draft twice. Raises ``ValueError``, and what mlx raises, for a drafter that doesn't fit."""
    wanted = _vocabulary(drafter.model)
    if wanted != forward.vocabulary_size:
        raise ValueError(f"it knows {wanted} tokens, and the model {forward.vocabulary_size}")
    tokens = mx.array([[1, 2, 3, 4]])
    _, hidden = forward.capture_hidden(lambda: forward.decode(tokens, forward.new_cache(), None))
    row = drafter.first_row()
    row.observe(HiddenStates(0, hidden))
    first = row.draft([2, 3, 4, 5], 2, _likeliest, None)
    row.keep(1)
    row.observe(HiddenStates(4, hidden[:, :2]))
    second = row.draft([6, 7], 2, _likeliest, None)
    for drafts in (first, second):
        assert drafts is not None
        if not all(0 <= token < forward.vocabulary_size for token in _list(drafts)):
            raise ValueError("it drafts tokens that the model does not have")


def _vocabulary(model: Any) -> int:
    """Return how many tokens the model must have that a drafter was made for."""
    config = model.config
    nested = (getattr(config, name, None) for name in ("transformer_layer_config", "text_config"))
    for section in (config, *nested):
        if size := getattr(section, "vocab_size", None):
            return int(size)
    raise ValueError("its configuration names no vocab_size")


def _list(array: mx.array) -> list[int]:
    return cast(list[int], array.tolist())


def _likeliest(logits: mx.array, _: int) -> mx.array:
    return mx.argmax(logits, axis=-1)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:200]
