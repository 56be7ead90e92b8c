"""What the functions that a worker knows stand for, and the input of a custom tool. Pure."""

import re
from dataclasses import dataclass
from typing import Final

import orjson

INPUT: Final = "input"
"""The one argument of the function that a custom tool is to workers."""

_JOIN: Final = "__"
"""It is between the name of a namespace and that of a tool in it."""

_BEGINNING: Final = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"')
"""What comes before the input in the arguments of a custom tool's function."""

_MOST_BEGINNING_CHARS: Final = 200
"""Arguments that have no input within this many characters have another form."""

_ESCAPE: Final = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
_UNFINISHED: Final = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
"""The end of a piece that may be the beginning of an escape."""

_HIGH: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_WHOLE_ESCAPE: Final = re.compile(
    rf"{_HIGH.pattern}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}|{_ESCAPE.pattern}"
)


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool as its client knows it."""

    name: str
    namespace: str | None = None
    """The namespace that it is in."""
    custom: bool = False
    """Whether it takes a text. Otherwise it is a function."""


def worker_name(name: str, namespace: str | None) -> str:
    """Return the name that workers know a tool by."""
    if not namespace:
        return name
    return f"{namespace.removesuffix(_JOIN)}{_JOIN}{name}"


class InputReader:
    """Reads the input of a custom tool out of its function's arguments, ``{"input": "..."}``, piece
    by piece. Arguments of another form are the input themselves.

    However the arguments are cut into pieces, the pieces of the input together are the same.
    """

    __slots__ = ("_held", "_is_over", "_is_plain", "_is_within")

    def __init__(self) -> None:
        self._held = ""
        """What was read and not returned yet."""
        self._is_within = False
        """Whether the input has begun."""
        self._is_plain = False
        """Whether the arguments have another form."""
        self._is_over = False

    def read(self, text: str) -> str:
        """Return what the next piece of the arguments adds to the input."""
        if self._is_plain:
            return text
        if self._is_over:
            return ""
        self._held += text
        if not self._is_within:
            begun = _BEGINNING.match(self._held)
            if begun is None:
                return self._as_plain() if self._is_other() else ""
            self._held = self._held[begun.end() :]
            self._is_within = True
        return self._next()

    def end(self) -> str:
        """Return what the end of the arguments adds to the input."""
        return "" if self._is_within else self._as_plain()

    def _as_plain(self) -> str:
        held, self._held, self._is_plain = self._held, "", True
        return held

    def _is_other(self) -> bool:
        start = self._held.lstrip()
        if not start:
            return False
        if not start.startswith("{") or len(self._held) > _MOST_BEGINNING_CHARS:
            return True
        rest = start[1:].lstrip()
        return bool(rest) and not rest.startswith('"')

    def _next(self) -> str:
        """Return the text up to the closing quote, or up to an escape that is not whole yet."""
        end = position = 0
        held = self._held
        while (mark := _first_mark(held, position)) >= 0:
            end = mark
            if held[mark] == '"':
                self._is_over = True
                break
            escape = _ESCAPE.match(held, mark)
            if escape is None:
                if _UNFINISHED.match(held, mark):
                    break  # The rest of it is to come.
                position = end = mark + 1
                continue
            if _HIGH.match(held, mark) and _UNFINISHED.match(held, escape.end()):
                break  # It is half of a character.
            position = end = escape.end()
        else:
            end = len(held)
        self._held = held[end:]
        return _unescaped(held[:end])


def _first_mark(text: str, start: int) -> int:
    quote, escape = text.find('"', start), text.find("\\", start)
    return max(quote, escape) if min(quote, escape) < 0 else min(quote, escape)


def _unescaped(text: str) -> str:
    return _WHOLE_ESCAPE.sub(_character, text) if "\\" in text else text


def _character(found: re.Match[str]) -> str:
    try:
        value: str = orjson.loads(f'"{found[0]}"')
    except orjson.JSONDecodeError:
        return "\N{REPLACEMENT CHARACTER}"  # Half of a character.
    return value
