"""Loading a model folder into memory, with progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_vlm.utils import load

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.specs import WorkerSpec
from lmx.protocol.states import LoadPhase
from lmx.worker.engine import LoadReporter, ModelFacts
from lmx.worker.grammar_vocabulary import takes_grammars
from lmx.worker.mlx_config import effective_context, read_folder
from lmx.worker.mlx_forward import Forward
from lmx.worker.mlx_guard import forbid_checkpoint_code
from lmx.worker.mlx_weights import read_weights
from lmx.worker.reasoning import find_markers
from lmx.worker.tool_calls import parser_for


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose weights are in memory, its tokenizer, and what is known of it."""

    model: Any
    forward: Forward
    tokenizer: Any
    facts: ModelFacts


def load_model(spec: WorkerSpec, advanced: LoadReporter) -> LoadedModel:
    """Load the folder that the spec names. Engine thread; takes as long as the disk needs.

    Raises :class:`OperationError` for a folder that can't be served as configured, and whatever
    mlx-vlm raises for one that it can't load.
    """
    folder = Path(spec.model_path)
    config = read_folder(folder)
    context_tokens = effective_context(config.context_tokens, spec.context_length)
    advanced(LoadPhase.WEIGHTS, 0.0, "")
    forbid_checkpoint_code()
    model, processor = load(str(folder), lazy=True, trust_remote_code=False)
    read_weights(model, advanced)
    tokenizer = getattr(processor, "tokenizer", processor)
    if not tokenizer.chat_template:
        tokenizer.chat_template = getattr(processor, "chat_template", None)
    forward = Forward(model)
    facts = ModelFacts(
        context_tokens=context_tokens,
        eos_token_ids=frozenset(tokenizer.stopping_criteria.eos_token_ids),
        vocabulary_size=forward.vocabulary_size,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        typical_p=config.typical_p,
        repetition_penalty=config.repetition_penalty,
        reasoning=find_markers(tokenizer),
        tool_parser=_tool_parser(tokenizer.chat_template, spec.tool_parser),
        converses=bool(tokenizer.chat_template),
        grammars=takes_grammars(tokenizer),
    )
    return LoadedModel(model, forward, tokenizer, facts)


def _tool_parser(chat_template: Any, configured: str | None) -> str | None:
    try:
        return parser_for(chat_template, configured)
    except ValueError as error:
        raise OperationError(ErrorCode.CONFIG_INVALID, f"tool_parser: {error}.") from error
