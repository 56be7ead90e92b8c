"""What a model folder's config.json says of the model to people: its family, its context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lmx.supervisor.config_model import AddedModelConfig, ModelConfig
from lmx.supervisor.kv_config import native_context, text_section


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``family``: the architecture's name, ``qwen3``; ``context_tokens``: the longest context that
    the model was made for; ``created_s``: the time of day when the file was written. None: the
    file doesn't say, or it is not known."""

    family: str | None = None
    context_tokens: int | None = None
    created_s: int | None = None


def context_problem(model: ModelConfig, facts: ModelFacts) -> str | None:
    """Return what is wrong with the context that a model is set to have: more than it was made
    for, unless nobody chose it. None: nothing, or it can't be told yet."""
    most, wanted = facts.context_tokens, model.context_length
    if most is None or wanted is None or wanted <= most:
        return None
    if isinstance(model, AddedModelConfig) and model.context_at_most:
        return None
    return (
        f"{model.id} can't have a context of {wanted} tokens: at most {most}, which is what the "
        "model has"
    )


def read_facts(folder: Path) -> ModelFacts:
    """Return what config.json says, nothing for a file that is missing or broken: loading the
    model says what is wrong with it."""
    try:
        file = folder / "config.json"
        config = json.loads(file.read_bytes())
        created_s = int(file.stat().st_mtime)
    except (OSError, ValueError, RecursionError):
        return ModelFacts()
    if not isinstance(config, dict):
        return ModelFacts()
    family = text_section(config).get("model_type") or config.get("model_type")
    return ModelFacts(str(family) if family else None, native_context(config), created_s)
