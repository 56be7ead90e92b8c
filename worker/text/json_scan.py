"""Follows one JSON value through text that arrives in pieces: where it ends, and whether it is
valid."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from lmx.worker.text.feed import Steps, TextFeed

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]+")
_VALID_WORD: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
# Python's own parser refuses values that are deeper, or have more digits.
_DEEPEST: Final = 200
_LONGEST_WORD: Final = 400
_ESCAPES: Final = frozenset('"\\/bfnrt')


class _State(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()


class JsonScanner:
    """Follows one JSON value through text. Only checks its form, holds no value.

    Two mistakes that models make in strings are mended, because what is meant is plain and the
    rest of the value is good: a bare control character (a line break) is escaped, and the
    backslash of an unknown escape (``\\d`` of a regular expression) stands for itself, but for
    ``\\'``, which is the quote. All else that is not JSON sets ``failed``, and so does what other
    parsers refuse for its depth or its digits.
    """

    __slots__ = ("_in_key", "_stack", "_state", "_word", "done", "failed")

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._stack: list[str] = []
        self._in_key = False
        self._word = ""
        self.done = False
        self.failed = False

    def scan(self, text: str) -> tuple[str, int]:
        """Return the text that belongs to the value, mended, and how many characters were read.

        If not all characters were read, the value is ``done`` or has ``failed`` there.
        """
        out: list[str] = []
        at = 0
        while at < len(text) and not (self.done or self.failed):
            at = self._step(text, at, out)
        return "".join(out), at

    def _step(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        match self._state:
            case _State.STRING:
                return self._string(text, at, out)
            case _State.ESCAPE:
                return self._escape(char, at, out)
            case _State.HEX:
                return self._hex(char, at, out)
            case _State.WORD:
                return self._read_word(text, at, out)
        if space := _SPACE.match(text, at):
            out.append(space.group())
            return space.end()
        if char == '"' and self._state in (_State.VALUE, _State.FIRST_ITEM):
            self._state, self._in_key = _State.STRING, False
        elif char == '"' and self._state in (_State.KEY, _State.FIRST_KEY):
            self._state, self._in_key = _State.STRING, True
        elif (
            char in "{["
            and self._state in (_State.VALUE, _State.FIRST_ITEM)
            and len(self._stack) < _DEEPEST
        ):
            self._stack.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_ITEM
        elif char == ":" and self._state is _State.COLON:
            self._state = _State.VALUE
        elif char == "," and self._state is _State.NEXT:
            self._state = _State.KEY if self._stack[-1] == "}" else _State.VALUE
        elif char in "}]" and self._may_close(char):
            self._stack.pop()
            self._value_ended()
        elif self._state in (_State.VALUE, _State.FIRST_ITEM) and _WORD.match(text, at):
            self._state, self._word = _State.WORD, ""
            return at
        else:
            self.failed = True
            return at
        out.append(char)
        return at + 1

    def _may_close(self, char: str) -> bool:
        return (
            self._state in (_State.NEXT, _State.FIRST_ITEM, _State.FIRST_KEY)
            and self._stack[-1] == char
        )

    def _string(self, text: str, at: int, out: list[str]) -> int:
        if plain := _PLAIN.match(text, at):
            out.append(plain.group())
            return plain.end()
        char = text[at]
        if char == "\\":
            self._state = _State.ESCAPE
        elif char == '"':
            out.append(char)
            if self._in_key:
                self._state = _State.COLON
            else:
                self._value_ended()
        else:
            out.append(json.dumps(char)[1:-1])
        return at + 1

    def _escape(self, char: str, at: int, out: list[str]) -> int:
        self._state = _State.STRING
        if char in _ESCAPES:
            out.append("\\" + char)
            return at + 1
        if char == "u":
            self._state, self._word = _State.HEX, ""
            return at + 1
        if char == "'":
            out.append(char)
            return at + 1
        out.append("\\\\")
        return at

    def _hex(self, char: str, at: int, out: list[str]) -> int:
        if char in _HEX:
            self._word += char
            if len(self._word) == 4:
                out.append("\\u" + self._word)
                self._state = _State.STRING
            return at + 1
        out.append("\\\\u" + self._word)
        self._state = _State.STRING
        return at

    def _read_word(self, text: str, at: int, out: list[str]) -> int:
        if more := _WORD.match(text, at):
            self._word += more.group()
            return more.end()
        out.append(self._word)
        if len(self._word) <= _LONGEST_WORD and _VALID_WORD.fullmatch(self._word):
            self._value_ended()
        else:
            self.failed = True
        return at

    def _value_ended(self) -> None:
        self._state = _State.NEXT
        self.done = not self._stack


def read_json(feed: TextFeed, give: Callable[[str], Any]) -> Steps[bool]:
    """Pass on the next JSON value, piece by piece; return whether it is complete."""
    scanner = JsonScanner()
    while True:
        text, length = scanner.scan(feed.rest)
        feed.take(length)
        if text:
            give(text)
        if scanner.done or scanner.failed or feed.ended:
            return scanner.done
        yield


def read_json_text(feed: TextFeed) -> Steps[str | None]:
    """Return the next JSON value as text; None if it isn't complete."""
    pieces: list[str] = []
    whole = yield from read_json(feed, pieces.append)
    return "".join(pieces) if whole else None
