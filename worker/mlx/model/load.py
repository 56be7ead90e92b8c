"""Bringing a model folder's weights into memory, with progress."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import structlog
from mlx.utils import tree_flatten

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.models.infill import infill_form
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.constraints.vocabulary import supports_grammars
from lmx.worker.engine.interfaces import LoadReporter, Ranks
from lmx.worker.engine.values import ModelFacts
from lmx.worker.formats.families.table import parser_for
from lmx.worker.formats.reasoning import find_markers
from lmx.worker.mlx.adapters.attach import Adapters, attach_adapters
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.memory.estimate import buffers_bytes, estimate
from lmx.worker.mlx.model.folder import effective_context, read_folder
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.kv_quantization import quantize_kv
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.passes import note_pass
from lmx.worker.mlx.model.readable import FolderChanges
from lmx.worker.mlx.model.shard import divide

log = structlog.get_logger()

# Evaluated at once: small enough for progress to be seen, large enough not to slow it.
_GROUP_BYTES: Final = 64 * 1024 * 1024


def read_weights(
    model: Any, advanced: LoadReporter, folder: Path, config: CheckpointConfig, kind: ModelKind
) -> None:
    """Evaluate all parameters, and limit the buffers that mlx keeps for reuse."""
    weights = [array for _, array in tree_flatten(model.parameters())]
    total_bytes = sum(array.nbytes for array in weights)
    mx.set_cache_limit(_cache_limit_bytes(total_bytes, folder, config, kind))
    done_bytes = 0
    for group in _groups(weights):
        mx.eval(group)
        done_bytes += sum(array.nbytes for array in group)
        advanced(LoadPhase.WEIGHTS, done_bytes / total_bytes, "")
    _warn_if_slow(weights)


def evaluate(model: Any) -> None:
    """Evaluate all parameters of a model that helps another one, in groups that each are noted as
    progress."""
    for group in _groups([array for _, array in tree_flatten(model.parameters())]):
        note_pass()
        mx.eval(group)


def _cache_limit_bytes(
    weights_bytes: int, folder: Path, config: CheckpointConfig, kind: ModelKind
) -> int:
    if on_gpu():
        return estimate(folder, config, kind).buffers_bytes
    return buffers_bytes(weights_bytes)


def _groups(weights: list[mx.array]) -> Iterator[list[mx.array]]:
    group: list[mx.array] = []
    size = 0
    for array in weights:
        group.append(array)
        size += array.nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _warn_if_slow(weights: list[mx.array]) -> None:
    if on_gpu():
        return
    slow = sorted(
        {str(array.dtype) for array in weights} & {"mlx.core.float16", "mlx.core.bfloat16"}
    )
    if slow:
        log.warning(
            "model.slow_on_cpu",
            dtypes=slow,
            advice="16-bit weights or scales are about 50 times slower on a CPU: use float32",
        )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose weights are in memory, its tokenizer, and what is known of it."""

    model: Any
    forward: Forward
    adapters: Adapters
    tokenizer: Any
    facts: ModelFacts
    library: str
    """Whose class the model is: ``mlx-lm`` or ``mlx-vlm``."""
    config: Mapping[str, Any]
    """As in :class:`lmx.worker.mlx.model.library.Checkpoint`."""
    processor: Any | None
    """As in :class:`lmx.worker.mlx.model.library.Checkpoint`."""
    allow_code: bool
    """Whether code may run that is in the folders which the model's configuration names."""
    group: mx.distributed.Group | None = None
    """The ranks among which the model is divided."""


def load_model(spec: WorkerSpec, advanced: LoadReporter, ranks: Ranks | None = None) -> LoadedModel:
    """Load the folder that the spec names. Engine thread; takes as long as the disk needs.

    Raises :class:`OperationError` for a folder that can't be served as configured, and as
    :func:`lmx.worker.mlx.model.library.open_checkpoint` does.
    """
    folder = Path(spec.model_path)
    config = read_folder(folder)
    context_tokens = effective_context(
        config.context_tokens, spec.context_length, config.checkpoint.impossible_context
    )
    advanced(LoadPhase.WEIGHTS, 0.0, "")
    checkpoint = open_checkpoint(
        folder,
        config.checkpoint,
        allow_code=spec.allow_checkpoint_code,
        changes=FolderChanges(
            spec.chat_template, spec.tokenizer_config or {}, context_tokens, spec.allow_inexact
        ),
    )
    for remark in checkpoint.remarks:
        log.warning("model.inexact", remark=remark)
    forward, tokenizer = checkpoint.forward, checkpoint.tokenizer
    model = forward.model
    group = None if ranks is None else divide(model, config.checkpoint, ranks)
    read_weights(model, advanced, folder, config.checkpoint, spec.kind)
    adapters = _attach(spec, forward)
    if spec.kv_bits is not None:
        quantize_kv(forward, spec.kv_bits)
    facts = ModelFacts(
        context_tokens=context_tokens,
        eos_token_ids=checkpoint.end_ids,
        vocabulary_size=forward.vocabulary_size,
        sampling=config.sampling,
        reasoning=find_markers(tokenizer),
        tool_parser=_tool_parser(tokenizer, spec.tool_parser),
        calls_in_open_thought=spec.calls_in_open_thought,
        converses=bool(tokenizer.chat_template),
        grammars=supports_grammars(tokenizer),
        infills=infill_form(tokenizer.get_added_vocab()) is not None,
        adapters=adapters.problems,
        media=checkpoint.media,
        remarks=checkpoint.remarks,
        own_context_tokens=config.context_tokens,
    )
    return LoadedModel(
        model=model,
        forward=forward,
        adapters=adapters,
        tokenizer=tokenizer,
        facts=facts,
        library=checkpoint.library,
        config=checkpoint.config,
        processor=checkpoint.processor,
        allow_code=spec.allow_checkpoint_code,
        group=group,
    )


def _attach(spec: WorkerSpec, forward: Forward) -> Adapters:
    def run(adapter: str, tokens: int) -> None:
        prompt = mx.zeros((1, tokens), mx.int32)
        changed = forward.with_adapter(adapter)
        changed.prompt(prompt, forward.new_cache(), changed.embed(prompt))

    return attach_adapters(forward.model, spec.adapters, forward.active, run)


def _tool_parser(tokenizer: Any, configured: str | None) -> str | None:
    try:
        return parser_for(tokenizer.chat_template, configured, tokenizer.get_added_vocab())
    except ValueError as error:
        raise OperationError(ErrorCode.CONFIG_INVALID, f"tool_parser: {error}.") from error
