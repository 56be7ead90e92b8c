"""What is wrong with a configuration, in sentences for people: where, what, and what to write
instead. This module is pure."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.values import given_text

_FORMS: Final = {
    "tuple_type": "it is a list: write [a, b], or a line with a dash for each",
    "dict_type": "it is a section: write keys with their values below it",
    "model_type": "it is a section: write keys with their values below it",
    "model_attributes_type": "it is a section: write keys with their values below it",
    "string_pattern_mismatch": "it has letters, digits and . _ : / @ + -, and begins with a letter "
    "or a digit",
    "missing": "it is required",
}
"""The kinds of errors that pydantic reports in words of Python."""


def describe(
    detail: Mapping[str, Any],
    values: Mapping[str, Any],
    lines: Mapping[tuple[int | str, ...], int],
    variables: Mapping[tuple[str, ...], str],
) -> str:
    """Return one error of the validation as a sentence.

    ``values`` is what was validated, ``lines`` has the lines of the file by their keys, and
    ``variables`` the names of the variables that went over the file.
    """
    location = tuple(detail["loc"])
    message = _FORMS.get(detail["type"], str(detail["msg"]).removeprefix("Value error, "))
    place = _place(location, values, lines, variables)
    if detail["type"] == "extra_forbidden":
        return f"{place}unknown key: {suggestion(str(location[-1]), _known_keys(location))}"
    plain = isinstance(detail["input"], str | int | float)
    if is_secret(location) or (detail["type"] in ("value_error", "missing") and not plain):
        return f"{place}{message}"
    return f"{place}{message} (given: {given_text(detail['input'])})"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return what was meant most likely, or all that there is."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def is_secret(location: tuple[Any, ...]) -> bool:
    """Return whether the value there is a secret key, which must not be shown."""
    return location[:1] == ("security",)


def _place(
    location: tuple[Any, ...],
    values: Mapping[str, Any],
    lines: Mapping[tuple[int | str, ...], int],
    variables: Mapping[tuple[str, ...], str],
) -> str:
    """Return the key with its line or its variable, as the beginning of a sentence. A model is
    named by its id. What is about the whole has no place."""
    if not location:
        return ""
    parts = [str(part) for part in location]
    if location[0] == "models" and len(location) > 1:
        parts[1] = _model_name(values, location[1])
    name = ".".join(parts)
    for length in range(len(location), 0, -1):
        key = location[:length]
        if key in variables:
            return f"{name} ({variables[key]}): "
        if key in lines and (location[0],) not in variables:
            return f"{name} (line {lines[key]}): "
    return f"{name}: "


def _model_name(values: Mapping[str, Any], number: Any) -> str:
    try:
        found = values["models"][number]["id"]
    except (LookupError, TypeError):
        return str(number)
    return found if isinstance(found, str) and found.isprintable() and found else str(number)


def _known_keys(location: tuple[Any, ...]) -> tuple[str, ...]:
    model: Any = Config
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        model = ModelConfig if part == "models" else _section(model.model_fields[part].annotation)
    return tuple(model.model_fields)


def _section(annotation: Any) -> Any:
    """Return the section that a field holds, also where it may be absent."""
    options = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    return options[0] if options else annotation
