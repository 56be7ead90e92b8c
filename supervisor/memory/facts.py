"""What a model folder's config.json says of the model to people: its family, its context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmx.supervisor.memory.kv import native_context, text_section


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``family``: the architecture's name, ``qwen3``; ``context_tokens``: the longest context that
    the model was made for; ``created_s``: the time of day when the file was written. None: the
    file doesn't say, or it is not known."""

    family: str | None = None
    context_tokens: int | None = None
    created_s: int | None = None


def facts_of(config: Mapping[str, Any], created_s: int | None) -> ModelFacts:
    """Return what a configuration says. Raises ``ValueError`` for a family that is no name."""
    family = text_section(config).get("model_type") or config.get("model_type")
    if family is not None and not (
        isinstance(family, str) and family.isprintable() and len(family) <= 80
    ):
        raise ValueError("model_type is no name")
    return ModelFacts(family or None, native_context(config), created_s)
