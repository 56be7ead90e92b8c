"""What differs between two configurations, what follows from it, and the sentences that explain it
to people. This module is pure.

What a change of a key needs is declared at the key (:mod:`lmx.supervisor.config.needs`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from lmx.protocol.models.keep_alive import keep_alive_text
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.needs import Needs, needs_of
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.security import ApiKeyConfig
from lmx.supervisor.config.values import Section

Changed = dict[str, tuple[Any, Any]]
"""The old and the new value by key."""


def changed_values(old: BaseModel, new: BaseModel) -> Changed:
    """Return the keys whose values differ. A model's id and what is not a setting do not count."""
    settings = ModelConfig if isinstance(old, ModelConfig) else type(old)
    extra = {**(old.model_extra or {}), **(new.model_extra or {})}
    names = [
        name
        for name in dict.fromkeys((*settings.model_fields, *extra))
        if not (isinstance(old, ModelConfig) and name == "id")
    ]
    values = ((name, _value(old, name), _value(new, name)) for name in names)
    return {name: (before, after) for name, before, after in values if before != after}


def _value(section: BaseModel, name: str) -> Any:
    """Return the value of a key. One of the user's own may be called like a method."""
    if name in type(section).model_fields:
        return getattr(section, name)
    return (section.model_extra or {}).get(name)


def listed(changed: Changed) -> str:
    """Return the changes as text: ``concurrency 2 -> 4, keep_alive forever -> 5m``."""
    parts: list[str] = []
    for key, (old, new) in changed.items():
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            inner = changed_values(old, new)
            parts += [
                f"{key}.{name} {shown(before)} -> {shown(after)}"
                for name, (before, after) in inner.items()
            ]
        elif key == "api_keys":
            parts.append(f"{key} {_keys_changed(old, new)}")
        elif isinstance(old, SecretStr) or isinstance(new, SecretStr):
            what = "removed" if new is None else "added" if old is None else "changed"
            parts.append(f"{key} {what}")
        else:
            text = _keep_alive_shown if key == "keep_alive" else shown
            parts.append(f"{key} {text(old)} -> {text(new)}")
    return ", ".join(parts)


def _keys_changed(old: Sequence[ApiKeyConfig], new: Sequence[ApiKeyConfig]) -> str:
    """Return how many keys differ. The keys themselves are secret."""
    before, after = ({one.key.get_secret_value(): one for one in keys} for keys in (old, new))
    counts = {
        "added": len(after.keys() - before.keys()),
        "removed": len(before.keys() - after.keys()),
        "changed": sum(before[key] != after[key] for key in before.keys() & after.keys()),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "reordered"


def _keep_alive_shown(seconds: float | None) -> str:
    return shown(None if seconds is None else keep_alive_text(seconds))


def shown(value: Any) -> str:
    """Return a value as it is written in YAML. None and what is empty become ``none``."""
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


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """The ids of the models that differ."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    respawned: tuple[str, ...] = ()
    """Models that need another worker."""
    touched: tuple[str, ...] = ()
    """Models whose changes apply to the worker that they have, or to their next one."""


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """The differences between two configurations."""

    sections: tuple[str, ...]
    """The keys at the top level below which something differs."""
    models: ModelChanges
    router: bool
    """Whether the router must be replaced."""
    moved: bool
    """Whether the new router must listen on another address."""
    sentences: tuple[str, ...]
    """All differences, for people."""


def compare(old: Config, new: Config) -> ConfigDiff:
    """Return what differs between the configuration in effect and another one."""
    sections = tuple(
        name for name in Config.model_fields if getattr(old, name) != getattr(new, name)
    )
    sentences: list[str] = []
    needs = Needs.NOTHING
    for name in Config.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if not isinstance(before, Section):
            continue
        table = needs_of(type(before))
        changed = changed_values(before, after)
        for key in changed:
            needs |= table.get(key, Needs.NOTHING)
        sentences += _section_sentences(name, changed, table)
    if old.default_model_id != new.default_model_id:
        sentences.append(
            f"default model: {shown(old.default_model_id)} -> {shown(new.default_model_id)}"
        )
    sentences += [f"{name}: now in effect" for name in ("groups", "peers") if name in sections]
    models, notes = _compare_models(old, new)
    return ConfigDiff(
        sections,
        models,
        router=bool(needs & (Needs.ROUTER | Needs.ADDRESS)),
        moved=bool(needs & Needs.ADDRESS),
        sentences=(*sentences, *notes),
    )


def _compare_models(old: Config, new: Config) -> tuple[ModelChanges, list[str]]:
    before = {model.id: model for model in old.models}
    after = {model.id: model for model in new.models}
    removed = tuple(name for name in before if name not in after)
    added, respawned, touched = [], [], []
    table = needs_of(ModelConfig)
    notes = [f"{name}: unloaded after its streams, it is no longer configured" for name in removed]
    for name, model in after.items():
        if name not in before:
            added.append(name)
            when = "loaded now" if model.preload else "loaded with its first request"
            notes.append(f"{name}: new, {when}")
            continue
        changed = changed_values(before[name], model)
        if not changed:
            if before[name] != model:
                touched.append(name)
                notes.append(f"{name}: {_WHOSE[isinstance(model, AddedModelConfig)]}")
            continue
        if any(table[key] & Needs.WORKER for key in changed):
            respawned.append(name)
            live = {key: changed.pop(key) for key in list(changed) if table[key] is Needs.NOTHING}
            if live:
                notes.append(f"{name}: now in effect ({listed(live)})")
            what = "reloaded once its streams have ended, if loaded"
        else:
            touched.append(name)
            what = "now in effect"
            if all(table[key] & Needs.NEXT_WORKER for key in changed):
                what = "for its next worker"
        notes.append(f"{name}: {what} ({listed(changed)})")
    return ModelChanges(tuple(added), removed, tuple(respawned), tuple(touched)), notes


_WHOSE: Final = {
    False: "it was added while lmx ran, and is one of the configuration now",
    True: "it is no longer configured, and stays as it was added while lmx ran",
}

_SENTENCES: Final = (
    (Needs.ADDRESS, "the router is replaced by one that listens there, after its streams"),
    (Needs.ROUTER, "the router is replaced, after its streams"),
    (Needs.NEXT_WORKER, "for workers that are started from now on"),
    (Needs.NOTHING, "now in effect"),
)


def _section_sentences(section: str, changed: Changed, table: Mapping[str, Needs]) -> list[str]:
    notes = []
    left = dict(changed)
    for need, what in _SENTENCES:
        found = {key: left.pop(key) for key in list(left) if need in table.get(key, Needs.NOTHING)}
        if found:
            also = need is Needs.ROUTER and any(table[key] & Needs.NEXT_WORKER for key in found)
            rest = "; workers have it from their next start" if also else ""
            notes.append(f"{section}: {what}{rest} ({listed(found)})")
    return notes
