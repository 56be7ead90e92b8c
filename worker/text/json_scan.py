"""Follows one JSON value through text in pieces: where it ends, and whether it is valid."""

import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from lmx.worker.text.feed import Steps, TextFeed, discard

_PLAIN: Final = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"""[^"'\\\x00-\x1f]+""")}
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]+")
_VALID_WORD: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
# Python's own parser refuses values that are deeper, or have more digits.
_MAX_DEPTH: Final = 200
_MAX_WORD: Final = 400
_ESCAPES: Final = frozenset('"\\/bfnrt')


class _State(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    QUOTE = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()


_VALUES: Final = (_State.VALUE, _State.FIRST_ITEM)
_KEYS: Final = (_State.KEY, _State.FIRST_KEY)


class JsonScanner:
    """Follows one JSON value through text. Only checks its form, holds no value.

    Mistakes that models make are repaired where it is plain what is meant and the rest of the value
    is good: a bare control character in a string (a line break) is escaped; the backslash of an
    unknown escape (``\\d`` of a regular expression) stands for itself, but for ``\\'``, which is
    the quote; strings may have single quotes, and words may be Python's (``None``, ``True``); a
    comma may stand behind the last member; and a quote in a member's string that a letter follows
    is a part of the string. All else that is not JSON sets ``failed``, and so does what other
    parsers refuse for its depth or its digits.

    What was passed on and :attr:`closing` together are JSON, at any time after the first character:
    a separator and a key are held back until their value begins.
    """

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._stack: list[str] = []
        self._held: list[str] | None = None
        self._in_key = False
        self._quote = '"'
        self._spaces = ""
        self._word = ""
        self.done = False
        self.failed = False

    @property
    def closing(self) -> str:
        """What makes JSON of the text that was passed on; "" if nothing of a value was."""
        in_value = self._state in (_State.STRING, _State.QUOTE, _State.ESCAPE, _State.HEX)
        quote = '"' if in_value and not self._in_key else ""
        return quote + "".join(reversed(self._stack))

    @property
    def held(self) -> str:
        """What was read and not passed on."""
        word = self._word if self._state is _State.WORD else ""
        return "".join(self._held or ()) + word

    def scan(self, text: str) -> tuple[str, int]:
        """Return the text that belongs to the value, repaired, and how many characters were read.

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
            case _State.QUOTE:
                return self._after_quote(text, at, out)
            case _State.ESCAPE:
                return self._escape(char, at, out)
            case _State.HEX:
                return self._hex(char, at, out)
            case _State.WORD:
                return self._read_word(text, at, out)
        if space := _SPACE.match(text, at):
            self._pass(out, space.group())
            return space.end()
        if char in "\"'" and self._state in (*_VALUES, *_KEYS):
            self._in_key = self._state in _KEYS
            self._state, self._quote = _State.STRING, char
            if not self._in_key:
                self._release(out)
            self._pass(out, '"')
            return at + 1
        if char in "{[" and self._state in _VALUES and len(self._stack) < _MAX_DEPTH:
            self._release(out)
            out.append(char)
            self._stack.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_ITEM
            self._held = [] if char == "{" else None
            return at + 1
        if char in "}]" and self._may_close(char):
            self._held = None
            out.append(char)
            self._stack.pop()
            self._value_ended()
            return at + 1
        if char == ":" and self._state is _State.COLON:
            self._state = _State.VALUE
        elif char == "," and self._state is _State.NEXT:
            self._state = _State.KEY if self._stack[-1] == "}" else _State.VALUE
            self._held = []
        elif self._state in _VALUES and _WORD.match(text, at):
            self._state, self._word = _State.WORD, ""
            return at
        else:
            self.failed = True
            return at
        self._pass(out, char)
        return at + 1

    def _pass(self, out: list[str], text: str) -> None:
        (out if self._held is None else self._held).append(text)

    def _release(self, out: list[str]) -> None:
        """Pass on what was held back: a value begins."""
        out += self._held or ()
        self._held = None

    def _may_close(self, char: str) -> bool:
        if self._state in (_State.KEY, _State.VALUE) and self._held is not None:
            # A comma stands behind the last member; after a colon a value must come.
            if "".join(self._held).strip() != ",":
                return False
        elif self._state not in (_State.NEXT, _State.FIRST_ITEM, _State.FIRST_KEY):
            return False
        return bool(self._stack) and self._stack[-1] == char

    def _string(self, text: str, at: int, out: list[str]) -> int:
        if plain := _PLAIN[self._quote].match(text, at):
            self._pass(out, plain.group())
            return plain.end()
        char = text[at]
        if char == "\\":
            self._state = _State.ESCAPE
        elif char != self._quote:
            self._pass(out, json.dumps(char)[1:-1])
        elif self._stack:
            self._state, self._spaces = _State.QUOTE, ""
        else:
            self._end_string(out)
        return at + 1

    def _after_quote(self, text: str, at: int, out: list[str]) -> int:
        """What follows shows whether a quote has ended the string."""
        if space := _SPACE.match(text, at):
            self._spaces += space.group()
            return space.end()
        if text[at].isalnum():
            self._pass(out, json.dumps(self._quote)[1:-1] + json.dumps(self._spaces)[1:-1])
            self._state = _State.STRING
        else:
            self._end_string(out)
            self._pass(out, self._spaces)
        return at

    def _end_string(self, out: list[str]) -> None:
        self._pass(out, '"')
        if self._in_key:
            self._state = _State.COLON
        else:
            self._value_ended()

    def _escape(self, char: str, at: int, out: list[str]) -> int:
        self._state = _State.STRING
        if char in _ESCAPES:
            self._pass(out, "\\" + char)
            return at + 1
        if char == "u":
            self._state, self._word = _State.HEX, ""
            return at + 1
        if char == "'":
            self._pass(out, char)
            return at + 1
        self._pass(out, "\\\\")
        return at

    def _hex(self, char: str, at: int, out: list[str]) -> int:
        if char in _HEX:
            self._word += char
            if len(self._word) == 4:
                self._pass(out, "\\u" + self._word)
                self._state = _State.STRING
            return at + 1
        self._pass(out, "\\\\u" + self._word)
        self._state = _State.STRING
        return at

    def _read_word(self, text: str, at: int, out: list[str]) -> int:
        if more := _WORD.match(text, at):
            self._word += more.group()
            return more.end()
        word = _PYTHON_WORDS.get(self._word, self._word)
        if len(word) <= _MAX_WORD and _VALID_WORD.fullmatch(word):
            self._release(out)
            out.append(word)
            self._value_ended()
        else:
            self.failed = True
        return at

    def _value_ended(self) -> None:
        self._state = _State.NEXT
        self.done = not self._stack


def read_json(
    feed: TextFeed, emit: Callable[[str], Any], spill: Callable[[str], Any] = discard
) -> Steps[bool]:
    """Pass on the next JSON value, piece by piece; return whether it is complete.

    What is wrong in it ends it there: what was passed on is closed, so that it is JSON, and
    ``spill`` gets what was read behind that. If the text ends first, it is not closed: a call that
    a limit has cut must not look whole.
    """
    scanner = JsonScanner()
    begun = False
    while True:
        text, length = scanner.scan(feed.rest)
        feed.read(length)
        if text:
            emit(text)
            begun = True
        if scanner.failed:
            if begun:
                emit(scanner.closing)
            spill(scanner.held)
        if scanner.done or scanner.failed or feed.ended:
            return scanner.done
        yield


def read_json_text(feed: TextFeed) -> Steps[str | None]:
    """Return the next JSON value as text; None if it isn't complete."""
    pieces: list[str] = []
    whole = yield from read_json(feed, pieces.append)
    return "".join(pieces) if whole else None
