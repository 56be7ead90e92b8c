"""What is wrong with a configuration, in sentences for people: where, what, and what to write
instead. This module is pure."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lmx.protocol.host.ordinal import ordinal
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.security import KEY_NAME_PATTERN, KEY_NAME_WORDS
from lmx.supervisor.config.sources import NAME_PATTERN, NAME_WORDS
from lmx.supervisor.config.values import given_text

_FORMS: Final = {
    "tuple_type": "it is a list: write [a, b], or a line with a dash for each",
    "dict_type": "it is a section: write keys with their values below it",
    "model_type": "it is a section: write keys with their values below it",
    "model_attributes_type": "it is a section: write keys with their values below it",
    "string_pattern_mismatch": "it must match the regular expression {pattern}",
    "missing": "it is required",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "it is a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "it is a number"),
    "finite_number": "it is a number, and not an infinite one",
    **dict.fromkeys(("bool_parsing", "bool_type"), "it is true or false"),
    "string_type": "it is a text",
    **dict.fromkeys(("literal_error", "enum"), "it is {expected}"),
    "greater_than": "it is above {gt}",
    "greater_than_equal": "it is at least {ge}",
    "less_than": "it is below {lt}",
    "less_than_equal": "it is at most {le}",
    "too_short": "it has at least {min_length} entries",
    "string_too_short": "it has at least {min_length} characters",
    "string_too_long": "it has at most {max_length} characters",
    **dict.fromkeys(
        ("byte_size", "byte_size_unit"), "it is a size: write 16MiB, 8GB or a number of bytes"
    ),
}
"""What is said of the kinds of errors that pydantic reports in words of Python."""

_PATTERNS: Final = {NAME_PATTERN: NAME_WORDS, KEY_NAME_PATTERN: KEY_NAME_WORDS}
"""What is said of texts that don't match them."""


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
    context = detail.get("ctx", {})
    form = _PATTERNS.get(context.get("pattern", ""), _FORMS.get(detail["type"]))
    message = str(detail["msg"]).removeprefix("Value error, ")
    if form is not None:
        message = form.format_map(context)
    place = place_words(location, values, lines, variables)
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
    # An address may have a password in it, where it does not belong.
    of_peer = location[:1] == ("peers",) and not {"key", "url"}.isdisjoint(location)
    return of_peer or location[:1] == ("security",) or location[:2] == ("tracing", "endpoint")


def place_words(
    location: tuple[Any, ...],
    values: Mapping[str, Any],
    lines: Mapping[tuple[int | str, ...], int],
    variables: Mapping[tuple[str, ...], str],
) -> str:
    """Return the key with its line or its variable, as the beginning of a sentence. Models and
    groups are named by their names. What is about the whole has no place."""
    if not location:
        return ""
    parts = [str(part) for part in location]
    if location[0] in _NAMED_BY and len(location) > 1:
        parts[1] = _item_name(values, *location[:2])
    name = ".".join(parts)
    for length in range(len(location), 0, -1):
        key = location[:length]
        if key in variables:
            return f"{name} ({variables[key]}): "
        if key in lines and (location[0],) not in variables:
            return f"{name} (line {lines[key]}): "
    return f"{name}: "


_NAMED_BY: Final = {"models": "id", "groups": "name", "peers": "name"}
"""The keys that name the entries of lists."""


def _item_name(values: Mapping[str, Any], section: Any, number: Any) -> str:
    """Return what an entry of a list is called: by its name, else by its place."""
    try:
        found = values[section][number][_NAMED_BY[section]]
    except (LookupError, TypeError):
        found = None
    if isinstance(found, str) and found.isprintable() and found:
        return found
    return ordinal(number + 1) if isinstance(number, int) else str(number)


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
