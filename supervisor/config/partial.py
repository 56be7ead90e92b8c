"""Finds every mistake of a configuration that is not valid: pydantic checks several keys together
only where each is right by itself, and then ends at the first mistake. This module is pure."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lmx.supervisor.config.cross_checks import Location, Mistake, MistakesError, Parts
from lmx.supervisor.config.routing import RoutingConfig
from lmx.supervisor.config.schema import Config, GroupConfig, ModelConfig, ServerConfig

Detail = Mapping[str, Any]
_REQUIRED: Final[Mapping[int | str, Mapping[str, Any]]] = {"models": {"id": "a", "source": "/"}}
"""What stands for the keys that an entry of a list must have, where they are wrong."""

_Kind = TypeVar("_Kind", bound=BaseModel)


def every_mistake(
    values: Mapping[str, Any], error: ValidationError, *, keys_kept: bool
) -> tuple[list[Detail], list[Mistake], Parts]:
    """Return the mistakes of single keys and sections as pydantic has them, those of several keys
    together, and what of the configuration is right by itself. ``keys_kept`` is whether lmx's home
    has a file of keys."""
    details: list[Detail] = [
        dict(each)
        for each in error.errors(include_url=False)
        if not isinstance(each.get("ctx", {}).get("error"), MistakesError)
    ]
    details += _hidden(values, details)
    parts = _parts(values, keys_kept=keys_kept)
    return details, list(parts.mistakes()), parts


def _hidden(values: Mapping[str, Any], details: Sequence[Detail]) -> Iterator[Detail]:
    """Yield the mistakes of sections as a whole that are found once their wrong keys are left
    out."""
    wrong: dict[Location, set[int | str]] = {}
    for detail in details:
        location = tuple(detail["loc"])
        length = 2 if location[:1] in (("models",), ("groups",)) else 1
        if len(location) > length and detail["type"] != "missing":
            wrong.setdefault(location[:length], set()).add(location[length])
    for place, keys in wrong.items():
        kind, section = _kind(place[0]), _at(values, place)
        if kind is None or not isinstance(section, dict):
            continue
        rest = {key: one for key, one in section.items() if key not in keys}
        try:
            kind.model_validate({**_REQUIRED.get(place[0], {}), **rest})
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                if detail["type"] == "value_error" and not detail["loc"]:
                    yield {**detail, "loc": place}


def _kind(name: int | str) -> type[BaseModel] | None:
    field = Config.model_fields.get(str(name))
    found = None if field is None else field.annotation
    options = [found, *typing.get_args(found)]
    return next(
        (one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None
    )


def _at(values: Any, place: Location) -> Any:
    for step in place:
        try:
            values = values[step]
        except (LookupError, TypeError):
            return None
    return values


_REACHED: Final = ("host", "allow_lan_without_key", "advertise")
"""The keys of `server` that are checked together with others."""


def _parts(values: Mapping[str, Any], *, keys_kept: bool) -> Parts:
    server = values.get("server")
    server = server if isinstance(server, dict) else {}
    given = ({name: server[name]} for name in _REACHED if name in server)
    reached = {name: one[name] for one in given for name in one if _valid(ServerConfig, one)}
    lan = _valid(ServerConfig, reached) or ServerConfig()
    security, default = values.get("security"), values.get("default_model")
    routing = _valid(RoutingConfig, values.get("routing")) or RoutingConfig()
    models = {place: _model(each) for place, each in _items(values, "models")}
    groups = {place: _group(each) for place, each in _items(values, "groups")}
    return Parts(
        models={place: one for place, one in models.items() if one is not None},
        groups={place: one for place, one in groups.items() if one is not None},
        routes=routing.routes,
        default_model=default if isinstance(default, str) else None,
        host=lan.host,
        advertised=lan.advertise,
        open_lan_is_meant=lan.allow_lan_without_key,
        has_keys=keys_kept or (isinstance(security, dict) and bool(security.get("api_keys"))),
    )


def _items(values: Mapping[str, Any], name: str) -> list[tuple[int, Any]]:
    found = values.get(name)
    return list(enumerate(found)) if isinstance(found, list | tuple) else []


def _model(value: Any) -> ModelConfig | None:
    """Return a model; of one that is not right its names alone, without a source."""
    whole = _valid(ModelConfig, value)
    if whole is not None or not isinstance(value, dict) or not isinstance(value.get("id"), str):
        return whole
    aliases, adapters = value.get("aliases"), value.get("adapters")
    return ModelConfig.model_construct(
        id=value["id"],
        source="",
        aliases=tuple(_names(aliases)),
        adapters=dict.fromkeys(_names(list(adapters) if isinstance(adapters, dict) else ()), ""),
        pinned=value.get("pinned") is True,
    )


def _group(value: Any) -> GroupConfig | None:
    """Return a group, without keys that are unknown."""
    if isinstance(value, dict):
        value = {key: one for key, one in value.items() if key in GroupConfig.model_fields}
    return _valid(GroupConfig, value)


def _names(value: Any) -> list[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        return []
    return [each for each in listed if isinstance(each, str)]


def _valid(kind: type[_Kind], value: Any) -> _Kind | None:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return None
