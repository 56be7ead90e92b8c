"""What differs between two configurations, and what follows from it. Pure.

Each key is in one table, with what a change of it needs; a test fails for a key that is in none.

Values of a configuration that changed, and how they are told to people. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final

from pydantic import BaseModel

from lmx.protocol.models.keep_alive import keep_alive_text
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config, ModelConfig

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


class Needs(Flag):
    """What has to happen before a changed value is in force."""

    NOTHING = 0
    NEXT_WORKER = auto()
    """Workers that are started from now on have it. Deadlines stay as they were for those that
    run: they also were told their beat interval at their start, and the two belong together."""
    WORKER = auto()
    """The model is loaded anew, after its streams."""
    ROUTER = auto()
    """The router is replaced, after its streams."""
    ADDRESS = auto()
    """As ROUTER, on another listening socket."""


_LIVE: Final = Needs.NOTHING
_BEATS: Final = Needs.ROUTER | Needs.NEXT_WORKER

SERVER: Final = {
    "host": Needs.ADDRESS,
    "port": Needs.ADDRESS,
    "allow_lan_without_key": _LIVE,
    "allowed_hosts": Needs.ROUTER,
    "cors_origins": Needs.ROUTER,
    "body_limit_bytes": Needs.ROUTER,
    "max_requests": Needs.ROUTER,
    "load_wait_s": Needs.ROUTER,
    "sync_timeout_s": Needs.ROUTER,
    "ping_interval_s": Needs.ROUTER,
    "reader_stall_timeout_s": Needs.ROUTER,
    "worker_silence_s": Needs.ROUTER,
}
MEMORY: Final = {
    "budget_bytes": _LIVE,
    "budget_fraction": _LIVE,
    "os_reserve_bytes": _LIVE,
    "soft_line": _LIVE,
    "hard_line": _LIVE,
    "keep_alive": _LIVE,
    "min_residency_s": _LIVE,
    "fair_wait_s": _LIVE,
}
TIMING: Final = {
    "beat_interval_s": _BEATS,
    "beat_timeout_s": _BEATS,
    "stall_timeout_s": Needs.NEXT_WORKER,
    "start_timeout_s": Needs.NEXT_WORKER,
    "load_stall_timeout_s": Needs.NEXT_WORKER,
    "render_timeout_s": Needs.NEXT_WORKER,
    "drain_timeout_s": Needs.NEXT_WORKER,
    "term_grace_s": Needs.NEXT_WORKER,
    "abort_grace_s": Needs.NEXT_WORKER,
    "shutdown_grace_s": Needs.ROUTER,
    "orphan_grace_s": _BEATS,
}
RESTART: Final = {
    "backoff_base_s": _LIVE,
    "backoff_max_s": _LIVE,
    "stable_after_s": _LIVE,
    "max_failures": _LIVE,
    "window_s": _LIVE,
}
SECURITY: Final = {"api_keys": Needs.ROUTER, "admin_key": Needs.ROUTER, "metrics_key": Needs.ROUTER}
RATE_LIMITS: Final = {"per_key": Needs.ROUTER, "total": Needs.ROUTER}
JOBS: Final = {"max_age_s": Needs.ROUTER, "max_count": Needs.ROUTER, "max_bytes": Needs.ROUTER}
LOGS: Final = {"level": _BEATS, "max_bytes": _BEATS, "keep": _BEATS}
MODEL: Final = {
    "source": Needs.WORKER,
    "aliases": _LIVE,
    "preload": _LIVE,
    "pinned": _LIVE,
    "keep_alive": _LIVE,
    "context_length": Needs.WORKER,
    "concurrency": Needs.WORKER,
    "max_rows": Needs.WORKER,
    "max_queue": Needs.WORKER,
    "max_queue_s": Needs.WORKER,
    "default_max_tokens": Needs.WORKER,
    "max_tokens_limit": Needs.WORKER,
    "temperature": Needs.WORKER,
    "top_p": Needs.WORKER,
    "top_k": Needs.WORKER,
    "min_p": Needs.WORKER,
    "typical_p": Needs.WORKER,
    "repetition_penalty": Needs.WORKER,
    "presence_penalty": Needs.WORKER,
    "frequency_penalty": Needs.WORKER,
    "kind": Needs.WORKER,
    "chat_template_kwargs": Needs.WORKER,
    "tool_parser": Needs.WORKER,
    "max_decode_stall_s": Needs.WORKER,
    "prefix_cache": Needs.WORKER,
    "speculation": Needs.WORKER,
    "memory_bytes": Needs.WORKER,
    "stall_timeout_s": Needs.NEXT_WORKER,
    "load_stall_timeout_s": Needs.NEXT_WORKER,
    "engine": Needs.WORKER,
    "engine_options": Needs.WORKER,
}
"""All but ``id``, which says which model it is. A section within a model counts as one key."""

SECTIONS: Final = {
    "server": SERVER,
    "memory": MEMORY,
    "timing": TIMING,
    "restart": RESTART,
    "logs": LOGS,
    "security": SECURITY,
    "rate_limits": RATE_LIMITS,
    "jobs": JOBS,
}
WHOLE: Final = frozenset({"default_model", "groups", "models", "routing"})
"""Keys at the top that are no sections of such keys; all but ``models`` are live."""


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """Ids of models. ``respawned``: they need another worker; ``touched``: what differs applies
    to the worker that they have, or to the next one."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    respawned: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """``sections``: keys at the top below which something differs. ``router``: it must be
    replaced; ``moved``: and listen elsewhere. ``sentences``: all of it, for people."""

    sections: tuple[str, ...]
    models: ModelChanges
    router: bool
    moved: bool
    sentences: tuple[str, ...]


def compare(old: Config, new: Config) -> ConfigDiff:
    """Return what differs between the configuration in force and another one."""
    sections = tuple(
        name for name in Config.model_fields if getattr(old, name) != getattr(new, name)
    )
    sentences: list[str] = []
    needs = Needs.NOTHING
    for name, table in SECTIONS.items():
        changed = changed_values(getattr(old, name), getattr(new, name))
        for key in changed:
            needs |= table[key]
        sentences += _section_sentences(name, changed, table)
    if old.default_model_id != new.default_model_id:
        sentences.append(
            f"default model: {shown(old.default_model_id)} -> {shown(new.default_model_id)}"
        )
    if old.groups != new.groups:
        sentences.append("groups: in force from now on")
    if old.routing != new.routing:
        sentences.append("routing: in force from now on")
    models, told = _compare_models(old, new)
    return ConfigDiff(
        sections,
        models,
        router=bool(needs & (Needs.ROUTER | Needs.ADDRESS)),
        moved=bool(needs & Needs.ADDRESS),
        sentences=(*sentences, *told),
    )


def _compare_models(old: Config, new: Config) -> tuple[ModelChanges, list[str]]:
    before = {model.id: model for model in old.models}
    after = {model.id: model for model in new.models}
    removed = tuple(name for name in before if name not in after)
    added, respawned, touched = [], [], []
    told = [f"{name}: unloaded after its streams, it is no longer configured" for name in removed]
    for name, model in after.items():
        if name not in before:
            added.append(name)
            when = "loaded now" if model.preload else "loaded with its first request"
            told.append(f"{name}: new, {when}")
            continue
        changed = changed_values(before[name], model)
        if not changed:
            if before[name] != model:
                touched.append(name)
                told.append(f"{name}: {_WHOSE[isinstance(model, AddedModelConfig)]}")
            continue
        if any(MODEL[key] & Needs.WORKER for key in changed):
            respawned.append(name)
            live = {key: changed.pop(key) for key in list(changed) if MODEL[key] is _LIVE}
            if live:
                told.append(f"{name}: in force from now on ({listed(live)})")
            what = "loaded anew after its streams, if it is loaded"
        else:
            touched.append(name)
            what = "in force from now on"
            if all(MODEL[key] & Needs.NEXT_WORKER for key in changed):
                what = "for its next worker"
        told.append(f"{name}: {what} ({listed(changed)})")
    return ModelChanges(tuple(added), removed, tuple(respawned), tuple(touched)), told


_WHOSE: Final = {
    False: "it was added while lmx ran, and is one of the configuration now",
    True: "it is no longer configured, and stays as it was added while lmx ran",
}

_SENTENCES: Final = (
    (Needs.ADDRESS, "the router is replaced by one that listens there, after its streams"),
    (Needs.ROUTER, "the router is replaced, after its streams"),
    (Needs.NEXT_WORKER, "for workers that are started from now on"),
    (Needs.NOTHING, "in force from now on"),
)


def _section_sentences(section: str, changed: Changed, table: dict[str, Needs]) -> list[str]:
    told = []
    left = dict(changed)
    for need, what in _SENTENCES:
        found = {key: left.pop(key) for key in list(left) if need in table[key]}
        if found:
            also = need is Needs.ROUTER and any(table[key] & Needs.NEXT_WORKER for key in found)
            rest = "; workers have it from their next start" if also else ""
            told.append(f"{section}: {what}{rest} ({listed(found)})")
    return told
