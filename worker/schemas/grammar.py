"""The forms that an answer can be held to, as llguidance's grammars. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Structure
from lmx.protocol.states import StructureKind
from lmx.worker.schemas.cost import MAX_INTERSECTIONS
from lmx.worker.schemas.dialects import FORMATS, VALUES

Grammar = dict[str, Any]
"""One of llguidance's grammars: ``{"json_schema": ...}`` or ``{"lark_grammar": ...}``."""

# One space, or a line break with its indentation: all that models write, and bounded, so that no
# model at a high temperature writes white space for ever.
_JSON_SPACE: Final = r"\x20|\n\x20{0,32}"
# Calls are written in one line, as chat templates do.
ONE_LINE_SPACE: Final = r"\x20"

# Rules that all name each other: 1 s for this many characters of Lark.
_MAX_GRAMMAR_CHARS: Final = 16_384
_MAX_PATTERN_CHARS: Final = 262_144
# What must come next is worked out to its end for each token: 30 ms for this many characters.
_MAX_CHOICE_CHARS: Final = 16_384

_CLOCKS: Final = ("date-time", "time")
_SECOND_BELOW_60: Final = r"T?\d\d:\d\d:[0-5]\d"
_PROSE: Final = frozenset({"description", "title", "$comment"})
# Without it llguidance looks for the end of what must come next, which `/y+/ /y+/` has not. Options
# of a request count for nothing.
_UNFORCED: Final = '%llguidance {"no_forcing": true}'
_OPTIONS: Final = re.compile(r"^[ \t]*%llguidance\b.*$", re.MULTILINE)
_ASCII_MARKS: Final = re.compile(r"[!-/:;=?@\[-`{-~]")
# The text between quotes or slashes in Lark.
_LITERAL: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)*/')


def structure_grammar(structure: Structure) -> Grammar:
    """Return the grammar of a form. Raises ``RequestError`` for a form that can't be read or is too
    large. It does not check whether llguidance accepts the grammar."""
    match structure.kind:
        case StructureKind.JSON_OBJECT:
            return schema_grammar({"type": "object"}, space(structure))
        case StructureKind.JSON_SCHEMA:
            return schema_grammar(read_schema(structure), space(structure))
        case StructureKind.REGEX:
            pattern = _at_most(structure, _MAX_PATTERN_CHARS)
            return {"lark_grammar": f"start: /{regex_to_lark(_unanchored(pattern), '')}/"}
        case StructureKind.CHOICE:
            return _choice(structure)
        case StructureKind.GRAMMAR:
            return _grammar(structure)


def schema_grammar(schema: Mapping[str, Any], space: str) -> Grammar:
    """Return the grammar of a JSON schema. ``space`` is described at :func:`guided`."""
    return {"json_schema": guided(schema, space)}


def guided(
    schema: Mapping[str, Any], space: str = ONE_LINE_SPACE, escapes: str | None = None
) -> dict[str, Any]:
    """Return a schema with llguidance's own options set; a request can't set them.

    ``space`` is a regular expression for one stretch of white space, ``escapes`` the letters that
    may follow a backslash (None: all).
    """
    options = {"whitespace_pattern": space}
    if escapes is not None:
        options["json_allowed_escapes"] = escapes
    return {**without_prose(schema), "x-guidance": options}


def without_prose(schema: Any) -> Any:
    """Return a schema without the parts that don't restrict an answer: often nine tenths of it."""
    if isinstance(schema, list):
        return [without_prose(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") in _CLOCKS:
        # llguidance allows the second 60 in every minute, but hardly any reader accepts it.
        schema = {"pattern": _SECOND_BELOW_60, **schema}
    return {
        key: value if key in VALUES else without_prose(value)
        for key, value in schema.items()
        # A property may have such a name; but its schema is no string.
        if not (isinstance(value, str) and (key in _PROSE or _is_remark(key, value)))
    }


def _is_remark(key: str, value: str) -> bool:
    return key == "format" and value not in FORMATS


def read_schema(structure: Structure) -> dict[str, Any]:
    """Return the schema of a form. Raises ``RequestError`` if it is not one."""
    try:
        schema = json.loads(structure.text)
    except json.JSONDecodeError as error:
        raise invalid(structure.param, f"it is no JSON: {error}") from error
    except ValueError as error:
        # Python's own limit for the digits of a number.
        raise invalid(structure.param, "a number in it is too large") from error
    except RecursionError as error:
        raise invalid(structure.param, "it is nested too deeply") from error
    if not isinstance(schema, dict):
        raise invalid(structure.param, "a JSON schema is a JSON object")
    return schema


def space(structure: Structure) -> str:
    """Return the regular expression for a stretch of white space in a form's JSON."""
    return _JSON_SPACE if structure.whitespace is None else structure.whitespace


def _choice(structure: Structure) -> Grammar:
    choices = choices_of(structure)
    # This is one terminal, because a rule with many alternatives is slow.
    return {"lark_grammar": f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, choices))}"}


def choices_of(structure: Structure) -> list[str]:
    """Return the choices of a form. Raises ``RequestError``."""
    text = _at_most(structure, _MAX_PATTERN_CHARS)
    try:
        choices = json.loads(text)
    except ValueError as error:
        raise invalid(structure.param, f"it is no JSON: {error}") from error
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise invalid(structure.param, "choices are an array of strings")
    if not choices:
        raise invalid(structure.param, "there is nothing to choose from")
    if max(map(len, choices)) > _MAX_CHOICE_CHARS:
        raise invalid(structure.param, f"a choice has more than {_MAX_CHOICE_CHARS} characters")
    return choices


def quoted(text: str) -> str:
    """Return a text as a literal in Lark."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return the regular expression of a text, for use between slashes in Lark."""
    # `\<` and `\>` would be the edges of a word.
    return _ASCII_MARKS.sub(lambda found: "\\" + found[0], text).replace("\n", "\\n")


def _grammar(structure: Structure) -> Grammar:
    text = _at_most(structure, _MAX_GRAMMAR_CHARS)
    try:
        lark = any_to_lark(text)
    except Exception as error:
        # The converter from GBNF raises bare exceptions, all of them about the grammar.
        raise invalid(structure.param, f"it is neither Lark nor GBNF: {error}") from error
    intersections = _LITERAL.sub("", lark).count("&")
    if "%json" in lark:
        intersections += lark.count('"pattern"') + lark.count('"format"')
    if intersections > MAX_INTERSECTIONS:
        raise invalid(
            structure.param, f"it has more than {MAX_INTERSECTIONS} intersections or patterns"
        )
    return {"lark_grammar": f"{_UNFORCED}\n{_OPTIONS.sub('', lark)}"}


def _at_most(structure: Structure, max_chars: int) -> str:
    if len(structure.text) > max_chars:
        raise invalid(structure.param, f"it has more than {max_chars} characters")
    return structure.text


def _unanchored(pattern: str) -> str:
    """Return a pattern without the anchors at its ends, which have no effect here."""
    if pattern.startswith("^"):
        pattern = pattern[1:]
    backslashes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    return pattern[:-1] if pattern.endswith("$") and backslashes % 2 == 0 else pattern


def invalid(param: str, reason: str) -> RequestError:
    """Return the error for a form that can't be enforced, and why."""
    return RequestError(
        ErrorCode.INVALID_VALUE,
        f"The answer can't be held to {param}: {reason}. Change that, or leave it out.",
        param=param,
    )
