"""Reads the configuration: YAML file, then ``LMX_*`` variables over it, then validation.

Every error names the key, the value and what is allowed, all of them at once.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.sources import SourceError, parse_models_variable

_QUOTED: Final = re.compile(r"'[^'<]{8,}'")
"""A word of the file itself, long enough to be a key."""

_MOST_BYTES: Final = 16 * 1024**2

_NOT_SETTINGS: Final = frozenset({"LMX_HOME", "LMX_CONFIG", "LMX_CACHE_DIR"})


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice: the first would be lost without a word."""


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


def load_config(path: Path | None, environment: Mapping[str, str]) -> Config:
    """Return the effective configuration; ``path`` None means: variables and defaults only.

    Raises :class:`OperationError` (config_invalid) that lists every problem.
    """
    values = {} if path is None else _read_yaml(path)
    where = str(path) if path else "the environment"
    problems: list[str] = []
    _apply_variables(values, environment, problems)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems += [_describe(dict(detail)) for detail in error.errors(include_url=False)]
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"{where}: not a valid configuration\n{lines}"
        )
    return config


def config_notices(path: Path | None) -> list[str]:
    """Return sentences for people about what is odd in a configuration that is valid."""
    if path is None or read_regular(path, _MOST_BYTES).strip():
        return []
    return [f"{path} is empty: what it should say is as by default, and no models are in it"]


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
    except ValueError as error:
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"can't read the configuration {path}: {error}"
        ) from error
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
            f"{path}: expected keys such as 'server:' and 'models:' at the top, "
            f"got {type(values).__name__}",
        )
    return values


def _apply_variables(
    values: dict[str, Any], environment: Mapping[str, str], problems: list[str]
) -> None:
    names = variable_names()
    for name, text in sorted(environment.items()):
        if not name.startswith("LMX_") or name in _NOT_SETTINGS or text == "":
            continue
        if name == "LMX_MODELS":
            try:
                values["models"] = _models_from_variable(text)
            except (SourceError, yaml.YAMLError) as error:
                problems.append(f"LMX_MODELS: {error}")
            continue
        key = names.get(name)
        if key is None:
            known = ", ".join(sorted([*names, "LMX_MODELS", *_NOT_SETTINGS]))
            problems.append(f"{name} is not a setting; known variables: {known}")
            continue
        target = values
        for part in key[:-1]:
            section = target.get(part)
            if not isinstance(section, dict):
                section = target[part] = {}
            target = section
        try:
            # In YAML a text that begins with a star is an alias, and here nothing can be aliased.
            target[key[-1]] = text if text.startswith("*") else yaml.safe_load(text)
        except yaml.YAMLError:
            given = "what it is set to" if _is_secret(key) else repr(text)
            problems.append(f"{name}: {given} is not a value")


def _models_from_variable(text: str) -> Any:
    if text.lstrip().startswith("["):
        return yaml.safe_load(text)
    return [{"id": model_id, "source": source} for model_id, source in parse_models_variable(text)]


def _describe(detail: dict[str, Any]) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "the whole"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{path}: unknown key; known here: {_known_keys(detail['loc'])}"
    plain = isinstance(detail["input"], str | int | float)
    if _is_secret(detail["loc"]) or (detail["type"] == "value_error" and not plain):
        return f"{path}: {message}"
    shown = repr(detail["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{path}: {message} (given: {shown})"


def _is_secret(path: tuple[Any, ...]) -> bool:
    """Return whether the value there is a secret key, which must not be shown."""
    return path[:1] == ("security",)


def _what_and_where(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    mark = error.problem_mark or error.context_mark
    said = ", ".join(text for text in (error.context, error.problem) if text)
    said = _QUOTED.sub("'...'", said)
    return said if mark is None else f"{said} (line {mark.line + 1})"


def _known_keys(location: tuple[Any, ...]) -> str:
    model: Any = Config
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        model = ModelConfig if part == "models" else _section(model.model_fields[part].annotation)
    return ", ".join(model.model_fields)


def _section(annotation: Any) -> Any:
    """Return the section that a field holds, also where it may be absent."""
    options = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    return options[0] if options else annotation
