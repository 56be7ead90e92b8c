"""Values of a configuration that changed, and how they are told to people. Pure."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from lmx.protocol.keep_alive import keep_alive_text
from lmx.supervisor.config import ModelConfig

Changed = dict[str, tuple[Any, Any]]
"""Old and new values by key."""


def changed_values(old: BaseModel, new: BaseModel) -> Changed:
    """Return the keys whose values differ, but for a model's id and what is no setting."""
    settings = ModelConfig if isinstance(old, ModelConfig) else type(old)
    names = [name for name in settings.model_fields if not _is_id(old, name)]
    return {
        name: (getattr(old, name), getattr(new, name))
        for name in names
        if getattr(old, name) != getattr(new, name)
    }


def _is_id(section: BaseModel, name: str) -> bool:
    return isinstance(section, ModelConfig) and name == "id"


def listed(changed: Changed) -> str:
    """Return all of them: ``concurrency 2 -> 4, keep_alive forever -> 5m``."""
    parts: list[str] = []
    for key, (old, new) in changed.items():
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            inner = changed_values(old, new)
            parts += [
                f"{key}.{name} {shown(before)} -> {shown(after)}"
                for name, (before, after) in inner.items()
            ]
        else:
            text = _keep_alive_shown if key == "keep_alive" else shown
            parts.append(f"{key} {text(old)} -> {text(new)}")
    return ", ".join(parts)


def _keep_alive_shown(seconds: float | None) -> str:
    return shown(None if seconds is None else keep_alive_text(seconds))


def shown(value: Any) -> str:
    """Return a value as it is written in YAML; nothing and what is empty as ``none``."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_defaults=True)
    if value is None or value in ((), {}, [], ""):
        return "none"
    if isinstance(value, bool | dict):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, list | tuple):
        text = ", ".join(map(shown, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
