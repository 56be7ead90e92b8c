"""Reads the configuration: YAML file, then ``LMX_*`` variables over it, then validation.

Every error names the key, the value and what is allowed, all of them at once.
"""

import contextlib
import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.config.cross_checks import Parts
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.partial import every_mistake
from lmx.supervisor.config.problems import describe, is_secret, place_words, suggestion
from lmx.supervisor.config.schema import KEYS_KEPT, Config, ModelConfig
from lmx.supervisor.config.sources import (
    SourceError,
    absolute_source,
    parse_models_variable,
    refuse_folder_as_repository,
)
from lmx.supervisor.config.values import given_text

_QUOTED: Final = re.compile(r"'[^'<]{8,}'")
"""A word of the file itself, long enough to be a key."""

_MOST_BYTES: Final = 16 * 1024**2

_NOT_SETTINGS: Final = frozenset(
    {"LMX_HOME", "LMX_CONFIG", "LMX_CACHE_DIR", "LMX_URL", "LMX_API_KEY"}
)
"""Variables of the command line: where lmx keeps what, and which lmx commands are about."""

_KEYS: Final = frozenset({("security", "admin_key"), ("security", "metrics_key")})

_NO_VALUE: Final = (ValueError, LookupError, AttributeError)
"""What PyYAML raises for a text that looks like a value of some type, or is marked as one, and is
not valid."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice: the first would be lost without a word."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a node's value. Raises ``yaml.YAMLError``, also for what looks like a date or a
        number and can't be one."""
        try:
            return super().construct_object(node, deep)
        except _NO_VALUE as error:
            reason = f"a value is invalid ({error}); a text that looks like this needs quotes"
            raise yaml.MarkedYAMLError(problem=reason, problem_mark=node.start_mark) from error


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            line = key_node.start_mark.line + 1
            raise yaml.YAMLError(f"the key {key!r} is not a word (line {line})")
        if key in seen:
            line = key_node.start_mark.line + 1
            raise yaml.YAMLError(f"the key {key!r} stands twice (line {line})")
        seen.add(key)
    return dict(loader.construct_mapping(node, deep=True))


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


class InvalidConfigError(OperationError):
    """A configuration that is not valid, with every problem of it."""

    def __init__(
        self, path: Path | None, problems: Sequence[str], models: Sequence[ModelConfig]
    ) -> None:
        where = str(path) if path else "variables and options"
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(ErrorCode.CONFIG_INVALID, f"{where}: not a valid configuration\n{lines}")
        self.path = path
        self.models = tuple(models)
        """Those of its models that are valid by themselves."""


def load_config(
    path: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, str] = MappingProxyType({}),
    *,
    keys_kept: bool = False,
) -> Config:
    """Return the effective configuration; ``path`` None means: variables and defaults only.
    ``options`` names the options of the command that have set variables. ``keys_kept`` is whether
    lmx's home has a file of keys (``Home.has_keys``): then others can't reach what no key protects,
    whatever is configured.

    Raises :class:`OperationError` (config_invalid); :class:`InvalidConfigError`, which lists every
    problem, if the file could be read.
    """
    values = {} if path is None else _file_values(path)
    problems: list[str] = []
    in_file = values.get("models")
    applied = _apply_variables(values, environment, problems)
    groups = _groups_of(values)
    _leave_out_others(values, in_file, applied)
    variables = {key: options.get(name, name) for key, name in applied.items()}
    # A key with nothing below it, as when all models are commented out, says nothing.
    values = {name: value for name, value in values.items() if value is not None}
    parts: Parts | None = None
    try:
        config = Config.model_validate(values, context=KEYS_KEPT if keys_kept else None)
    except ValidationError as error:
        numbers = {} if path is None else _lines(path)
        kept = {id(group) for group in _groups_of(values)}
        numbers = _renumbered(numbers, [id(group) in kept for group in groups])
        details, mistakes, parts = every_mistake(values, error, keys_kept=keys_kept)
        problems += [describe(detail, values, numbers, variables) for detail in details]
        problems += [
            place_words(location, values, numbers, variables) + text for location, text in mistakes
        ]
    if problems:
        models = config.models if parts is None else parts.models.values()
        raise InvalidConfigError(path, problems, [one for one in models if one.source])
    return config


def configured_models(path: Path | None, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the models of a configuration as they were written, without a look at their keys.
    Raises :class:`OperationError` (config_invalid) if the file can't be read."""
    models: Any = {} if path is None else _file_values(path).get("models")
    text = environment.get("LMX_MODELS")
    if text:
        try:
            models = _models_from_variable(text)
        except (ValueError, yaml.YAMLError) as error:
            raise OperationError(ErrorCode.CONFIG_INVALID, f"LMX_MODELS: {error}") from error
    if not isinstance(models, list):
        return []
    return [model for model in models if isinstance(model, dict)]


def config_notices(path: Path | None, environment: Mapping[str, str]) -> list[str]:
    """Return sentences for people about what is odd in a configuration that is valid."""
    if path is None:
        return []
    try:
        content = read_regular(path, _MOST_BYTES)
    except OSError:
        return []  # it was changed just now
    if not content.strip():
        return [f"{path} is empty: what it should say is as by default, and no models are in it"]
    mode = exposed_keys(path)
    notices = [] if mode is None else [exposed_words(path, mode)]
    for model in configured_models(path, {}):
        try:
            source = repository_of(str(model["source"]))
            refuse_folder_as_repository(source, path.absolute().parent)
        except (SourceError, LookupError) as error:
            notices.append(f"models.{model.get('id')}.source: {error}")
    values = _file_values(path)
    in_file = values.get("models")
    left_out = _leave_out_others(values, in_file, _apply_variables(values, environment, []))
    return [*notices, *left_out]


def overridden(path: Path | None, environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for people about each key of a file that a variable goes before."""
    if path is None:
        return []
    lines, names = _lines(path), {**variable_names(), "LMX_MODELS": ("models",)}
    return [
        f"{'.'.join(key)} (line {lines[key]}) is left out: {name}, from the environment or the "
        "command that started lmx, goes before it until lmx is stopped, and started without"
        for name in setting_variables(environment)
        if (key := names.get(name)) in lines
    ]


def exposed_keys(path: Path) -> int | None:
    """Return the mode of a configuration that has keys and that other users can read; None for any
    other file. Raises :class:`OperationError` (config_invalid) if it can't be read."""
    values = _file_values(path)
    peers = values.get("peers")
    keys = ("api_keys", "admin_key", "metrics_key", "key")
    sections = [values.get("security"), *(peers if isinstance(peers, list) else ())]
    if not any(one.get(key) for one in sections if isinstance(one, dict) for key in keys):
        return None
    mode = path.stat().st_mode & 0o777
    return mode if mode & 0o044 else None


def exposed_words(path: Path, mode: int) -> str:
    """Return what to do about such a file. Pure."""
    return f"{path} has keys, and other users can read it (mode {mode:04o}): chmod 600 {path}"


def source_lines(path: Path | None) -> dict[str, int]:
    """Return the lines in which the models of a file have their sources, by their ids."""
    if path is None:
        return {}
    models, lines = configured_models(path, {}), _lines(path)
    return {
        str(model.get("id")): line
        for number, model in enumerate(models)
        if (line := lines.get(("models", number, "source")))
    }


def setting_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the ``LMX_*`` variables of an environment that :func:`load_config` reads, by name."""
    return {
        name: text
        for name, text in sorted(environment.items())
        if name.startswith("LMX_") and name not in _NOT_SETTINGS and text != ""
    }


def variable_names() -> dict[str, tuple[str, ...]]:
    """Return every ``LMX_*`` setting variable with the path of its key."""
    names: dict[str, tuple[str, ...]] = {"LMX_DEFAULT_MODEL": ("default_model",)}
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for key in kind.model_fields:
                names[f"LMX_{section}_{key}".upper()] = (section, key)
    return names


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
    except OSError as error:
        why = error.strerror or error
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"can't read the configuration {path}: {why}"
        ) from error
    except UnicodeDecodeError as error:
        raise OperationError(ErrorCode.CONFIG_INVALID, f"{path} is not UTF-8 text") from error
    try:
        values = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506  a SafeLoader underneath
    except yaml.YAMLError as error:
        # Not the whole error is shown: it has the lines around, which may contain a secret key.
        message = f"{path} is not YAML: {_what_and_where(error)}"
        raise OperationError(ErrorCode.CONFIG_INVALID, message) from None
    except RecursionError:
        raise OperationError(ErrorCode.CONFIG_INVALID, f"{path} is nested too deeply") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"{path}: keys such as 'server:' and 'models:' stand at the top, and this file is "
            f"{'a list' if isinstance(values, list) else f'only {given_text(values)}'}",
        )
    return values


def _file_values(path: Path) -> dict[str, Any]:
    """Return the values of the file, with absolute paths of models: what is not absolute is below
    the file's folder, wherever lmx is started from."""
    values = _read_yaml(path)
    _make_absolute(values.get("models"), path.absolute().parent)
    return values


def _make_absolute(models: Any, folder: Path) -> None:
    """Make the paths in models' entries absolute. Values of other types are the validation's."""
    for model in models if isinstance(models, list) else []:
        if isinstance(model, dict):
            _make_paths_absolute(model, folder)


def _make_paths_absolute(model: dict[str, Any], folder: Path) -> None:
    speculation = model.get("speculation")
    adapters = model.get("adapters")
    for section, key in (
        (model, "source"),
        *([(speculation, "draft")] if isinstance(speculation, dict) else []),
        *([(adapters, name) for name in adapters] if isinstance(adapters, dict) else []),
    ):
        text = section.get(key)
        if isinstance(text, str):
            section[key] = absolute_source(text, folder)
    template = model.get("chat_template")
    # What has a brace is the template itself; the worker expands `~`.
    if isinstance(template, str) and template and "{" not in template and template[0] != "~":
        model["chat_template"] = os.path.normpath(folder / template)


def _lines(path: Path) -> dict[tuple[int | str, ...], int]:
    """Return the line of each key and of each entry of a list in a file that was read before."""
    try:
        root = yaml.compose(read_regular(path, _MOST_BYTES).decode("utf-8"), yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # it was changed just now
    found: dict[tuple[int | str, ...], int] = {}
    _note_lines(root, (), found)
    return found


def _note_lines(
    node: yaml.Node | None, place: tuple[int | str, ...], found: dict[tuple[int | str, ...], int]
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            found[*place, str(key.value)] = key.start_mark.line + 1
            _note_lines(value, (*place, str(key.value)), found)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            found[*place, number] = value.start_mark.line + 1
            _note_lines(value, (*place, number), found)


def _renumbered(
    lines: Mapping[tuple[int | str, ...], int], kept: Sequence[bool]
) -> dict[tuple[int | str, ...], int]:
    """Return the lines by the places that the groups have once some are left out. ``kept`` says of
    each group of the file whether it is there still."""
    found: dict[tuple[int | str, ...], int] = {}
    for place, line in lines.items():
        match place:
            case ("groups", int(number), *rest) if number < len(kept):
                if kept[number]:
                    found["groups", sum(kept[:number]), *rest] = line
            case _:
                found[place] = line
    return found


def _apply_variables(
    values: dict[str, Any], environment: Mapping[str, str], problems: list[str]
) -> dict[tuple[str, ...], str]:
    """Put the variables over the values of the file. Returns the variables by their keys."""
    applied: dict[tuple[str, ...], str] = {}
    names = variable_names()
    for name, text in setting_variables(environment).items():
        if name == "LMX_MODELS":
            try:
                values["models"] = _models_from_variable(text)
                applied["models",] = name
            except (ValueError, yaml.YAMLError) as error:
                problems.append(f"LMX_MODELS: {error}")
            continue
        key = names.get(name)
        if key is None:
            known_names = sorted([*names, "LMX_MODELS", *_NOT_SETTINGS])
            problems.append(f"{name} is not a setting: {suggestion(name, known_names)}")
            continue
        applied[key] = name
        target = values
        for part in key[:-1]:
            section = target.get(part)
            if not isinstance(section, dict):
                section = target[part] = {}
            target = section
        try:
            # In YAML a text that begins with a star is an alias, and here nothing can be aliased.
            # What follows a number sign is a comment, which must not shorten a key.
            plain = text.startswith("*") or (key in _KEYS and text.lstrip()[:1] not in ("'", '"'))
            value = text.strip() if plain else yaml.safe_load(text)
        except (*_NO_VALUE, RecursionError, yaml.YAMLError):
            given = "what it is set to" if is_secret(key) else repr(text)
            problems.append(f"{name}: {given} is not a value")
        else:
            # An IPv6 address may be a map in YAML, as `::` is.
            other = key == ("server", "host") and not isinstance(value, str)
            target[key[-1]] = text if other else value
    return applied


def _groups_of(values: Mapping[str, Any]) -> list[Any]:
    found = values.get("groups")
    return list(found) if isinstance(found, list) else []


def _leave_out_others(
    values: dict[str, Any], in_file: Any, applied: Mapping[tuple[str, ...], str]
) -> list[str]:
    """Leave out what the file says of those of its models in whose place a variable has put others:
    they are no mistake of the file. Returns sentences for people about it."""
    if ("models",) not in applied:
        return []
    gone = _names_of(in_file) - _names_of(values["models"])
    left_out = []
    default = values.get("default_model")
    if isinstance(default, str) and default in gone and ("default_model",) not in applied:
        del values["default_model"]
        left_out.append(f"default_model is left out: {default!r} is not served now")
    for group in _groups_of(values):
        named = group.get("models") if isinstance(group, dict) else None
        models: list[Any] = named if isinstance(named, list) else []
        others = gone.intersection(map(str, models))
        if others:
            group["models"] = [one for one in models if str(one) not in others]
            if not group["models"]:
                values["groups"].remove(group)
            left_out.append(
                f"models that are not served now are left out of the group {group.get('name')!r}: "
                + ", ".join(sorted(others))
            )
    return left_out


def _names_of(models: Any) -> set[str]:
    """Return the names of models that were not validated."""
    names: list[Any] = []
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict):
            for key in ("aliases", "adapters"):
                found = model.get(key)
                names += found if isinstance(found, list | dict) else [found]
            names.append(model.get("id"))
    return {name for name in names if isinstance(name, str)}


def absolute_models(text: str, folder: Path) -> str:
    """Return the value of ``LMX_MODELS`` with absolute paths of models: what is not absolute is
    below a folder. A value that needs no change, or is invalid, stays as it is."""
    try:
        models = _models_from_variable(text)
        absolute = copy.deepcopy(models)
        _make_absolute(absolute, folder)
        written = json.dumps(absolute)
        # JSON would hide mistakes: it has words for keys that are numbers, for example.
        same = absolute == models or json.loads(written) != absolute
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        return text
    return text if same else written


def _models_from_variable(text: str) -> Any:
    """Raises ``ValueError`` or ``yaml.YAMLError``."""
    if text.lstrip().startswith("["):
        # lmx writes JSON itself. YAML reads its escapes of characters beyond U+FFFF as two halves.
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
        try:
            return yaml.safe_load(text)
        except (LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"a value is invalid ({error})") from error
    return [{"id": model_id, "source": source} for model_id, source in parse_models_variable(text)]


def _what_and_where(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    mark = error.problem_mark or error.context_mark
    reason = ", ".join(text for text in (error.context, error.problem) if text)
    if "alias" in reason:
        reason += ": what begins with * needs quotes"
    reason = _QUOTED.sub("'...'", reason)
    return reason if mark is None else f"{reason} (line {mark.line + 1})"
