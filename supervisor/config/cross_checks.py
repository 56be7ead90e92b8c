"""What must be right of several keys of the configuration together: names are unique, and what is
named is there. This module is pure.

Each check continues after a mistake, and takes what is right by itself, so that all mistakes are
found at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lmx.protocol.web_origins import is_loopback

if TYPE_CHECKING:
    from lmx.supervisor.config.model import GroupConfig, ModelConfig

Location = tuple[int | str, ...]


class Mistake(NamedTuple):
    """A mistake, and the key where it is to be corrected."""

    location: Location
    text: str


class MistakesError(ValueError):
    """A configuration whose keys are right by themselves, but not together."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(f"{'.'.join(map(str, loc))}: {text}" for loc, text in mistakes))


@dataclass(frozen=True)
class Parts:
    """What is checked together. Models and groups are by their places in the lists: those that are
    not right by themselves may be missing, or have names alone."""

    models: Mapping[int, ModelConfig] = field(default_factory=dict)
    groups: Mapping[int, GroupConfig] = field(default_factory=dict)
    routes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    default_model: str | None = None
    host: str = "127.0.0.1"
    advertised: bool = False
    open_lan_is_meant: bool = False
    has_keys: bool = False
    """Whether keys protect the API: some are configured, or lmx's home has a file of keys."""

    def mistakes(self) -> Iterator[Mistake]:
        """Yield every mistake."""
        id_of: dict[str, str] = {}
        for place, model in self.models.items():
            for name in model.names:
                if id_of.get(name) == model.id:
                    text = f"two models, or one model twice, have the name {name!r}"
                    yield Mistake(("models", place), text)
                elif name in id_of:
                    yield Mistake(
                        ("models", place),
                        f"the name {name!r} belongs to models.{id_of[name]} too: ids, aliases and "
                        "names of adapters must be unique",
                    )
                id_of.setdefault(name, model.id)
        if self.default_model is not None and self.default_model not in id_of:
            yield Mistake(
                ("default_model",),
                f"{self.default_model!r} is no name of a model (known: {_listed(id_of)})",
            )
        for name, models in self.routes.items():
            if name in id_of:
                text = f"it has the name of models.{id_of[name]}: give one of them another"
                yield Mistake(("routing", name), text)
            if not models:
                yield Mistake(("routing", name), "it names no model: name some, or leave it out")
        if not is_loopback(self.host) and not self.has_keys and not self.open_lan_is_meant:
            yield Mistake(
                ("server", "host"),
                f"{self.host} can be reached by others and no key protects the API: make one with "
                "`lmx key add NAME`, set security.api_keys, use 127.0.0.1, or set "
                "server.allow_lan_without_key to true if that is meant",
            )
        if is_loopback(self.host) and self.advertised:
            yield Mistake(
                ("server", "advertise"),
                f"others can't reach {self.host}, and need not find it: set server.host to "
                "0.0.0.0, with keys, or leave this out",
            )
        yield from self._of_groups(id_of)

    def _of_groups(self, id_of: Mapping[str, str]) -> Iterator[Mistake]:
        models = {model.id: model for model in self.models.values()}
        group_of: dict[str, str] = {}
        names: set[str] = set()
        for place, group in self.groups.items():
            here: Location = ("groups", place)
            if group.name in names:
                yield Mistake(here, f"two groups have the same name, {group.name!r}")
            names.add(group.name)
            for model_id in group.models:
                if model_id not in models:
                    hint = (
                        f"another name of a model: write its id, {id_of[model_id]!r}"
                        if model_id in id_of
                        else f"which is no model's id (known: {_listed(models)})"
                    )
                    yield Mistake(here, f"it names {model_id!r}, {hint}")
                elif model_id in group_of:
                    yield Mistake(
                        here,
                        f"{model_id!r} is in groups {group_of[model_id]} and {group.name}: a model "
                        "can be in one group, once",
                    )
                group_of.setdefault(model_id, group.name)
            pinned = [each for each in group.models if each in models and models[each].pinned]
            if group.swap and len(pinned) > 1:
                yield Mistake(
                    here,
                    "one of its models is loaded at a time (swap), but "
                    f"{' and '.join(pinned)} are pinned: one would keep the other out for good",
                )


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"
