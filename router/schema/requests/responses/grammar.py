"""The regular expression that the input of a custom tool must match, made of its grammar. Pure.

A call's arguments are JSON, in which a string can be held to a regular expression, in every form
that models write calls in. A grammar in Lark is therefore written out as one. A rule that names
itself is written out to some depth: every input that is written then follows the grammar, and the
deepest ones of the grammar can't be written.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, NoReturn

from lmx.protocol.errors import RequestError
from lmx.router.schema.validation import invalid, short

_DEEPEST: Final = 4
"""How often a rule may be within itself, if the regular expression is not too large then."""

_MOST_NODES: Final = 20_000
"""A regular expression of more nodes is too large."""

_MOST_STEPS: Final = 150_000
"""How many tokens are read and nodes written for all grammars of one request. It is done on the
event loop, at a few microseconds a step. Any single grammar has enough of them."""

_MOST_PATTERN_CHARS: Final = 32_768

_SIGNS: Final = re.compile(r"[\\^$.|?*+()\[\]{}/\n\r\t-]")
_ESCAPE: Final = re.compile(r"\\(?:U([0-9a-fA-F]{8})|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))")
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_CONTROLS: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""The terminals of Lark's own library."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s*+(?://|\#)[^\n]*|[ \t\f\r]+)  # a comment has the line break before it
    |(?P<line>\n\s*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    |(?P<name>[!?]{0,2}_?[A-Za-z][A-Za-z0-9_]*)
    |(?P<statement>%[a-z_]+)
    |(?P<number>-?\d+)
    |(?P<mark>->|\.\.|[():|\[\]?*+~.,])
    """,
    re.VERBOSE,
)


class _Text(NamedTuple):
    pattern: str


class _Name(NamedTuple):
    name: str


class _Sequence(NamedTuple):
    parts: list[_Node]


class _Choice(NamedTuple):
    parts: list[_Node]


class _Repeated(NamedTuple):
    part: _Node
    how_often: str
    """The sign behind it in a regular expression."""


_Node = _Text | _Name | _Sequence | _Choice | _Repeated


class StepBudget:
    """The steps that are left for the grammars of one request."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def spend(self, param: str) -> None:
        """Count one step. Raises :class:`RequestError`, which names ``param``, if none is left."""
        self._left -= 1
        if self._left < 0:
            _refuse(param, "the grammars of the request are too large together")


def input_pattern(syntax: str, definition: str, param: str, budget: StepBudget) -> str:
    """Return the regular expression that a whole input matches.

    ``syntax`` is `lark` or `regex`. Raises :class:`RequestError`, which names ``param``, for a
    grammar that can't be read, or not be written as a regular expression, and if ``budget`` is
    spent.
    """
    if syntax == "regex":
        return f"^(?:{_unanchored(definition)})$"
    try:
        return _lark_pattern(definition, param, budget)
    except RecursionError as error:
        raise _refusal(param, "it is nested too deeply") from error


def _lark_pattern(definition: str, param: str, budget: StepBudget) -> str:
    reader = _Reader(_tokens(definition, param, budget), param)
    reader.read()
    if "start" not in reader.rules:
        _refuse(param, "it has no rule `start`")
    depth = _DEEPEST
    while depth > 0:
        writer = _Writer(reader.rules, depth, param, budget)
        try:
            return _pattern_of(reader, writer, param)
        except _TooLargeError:
            # Any depth that no rule has reached gives the same nodes again.
            depth = writer.reached - 1
    raise _refusal(
        param, f"as a regular expression it has more than {_MOST_PATTERN_CHARS} characters"
    )


def _pattern_of(reader: _Reader, writer: _Writer, param: str) -> str:
    skipped = writer.written(_Choice(reader.skipped), "") if reader.skipped else ""
    skip = f"(?:{skipped})*" if skipped else ""
    written = writer.written(_Name("start"), skip)
    if written is None:
        _refuse(param, "no text follows it")
    return f"^(?:{written}{skip})$"


def _unanchored(pattern: str) -> str:
    pattern = pattern.removeprefix("^")
    backslashes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    return pattern[:-1] if pattern.endswith("$") and backslashes % 2 == 0 else pattern


class _TooLargeError(Exception):
    """The regular expression is too large to this depth."""


class _Writer:
    """Writes the rules of a grammar as regular expressions. A rule may be within itself less than
    ``depth`` times."""

    def __init__(
        self, rules: Mapping[str, _Node], depth: int, param: str, budget: StepBudget
    ) -> None:
        self.reached = 0
        """How often a rule has been within itself, itself included."""
        self._rules = rules
        self._depth = depth
        self._param = param
        self._budget = budget
        self._nodes = 0
        self._within: Counter[str] = Counter()
        """How often the node that is being written is within each rule."""

    def written(self, node: _Node, skip: str) -> str | None:
        """Return the pattern of a node; None if no text matches it that is not nested too deeply.

        ``skip`` matches what may stand before each terminal. Raises :class:`_TooLargeError`.
        """
        self._budget.spend(self._param)
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise _TooLargeError
        pattern = self._pattern(node, skip)
        if pattern is not None and len(pattern) > _MOST_PATTERN_CHARS:
            raise _TooLargeError
        return pattern

    def _pattern(self, node: _Node, skip: str) -> str | None:
        match node:
            case _Text(pattern):
                return skip + pattern
            case _Name(name):
                return self._rule(name, skip)
            case _Sequence(parts):
                patterns = [self.written(part, skip) for part in parts]
                return None if None in patterns else "".join(filter(None, patterns))
            case _Choice(parts):
                found = [self.written(part, skip) for part in parts]
                possible = list(dict.fromkeys(one for one in found if one is not None))
                return f"(?:{'|'.join(possible)})" if possible else None
            case _Repeated(part, how_often):
                once = self.written(part, skip)
                if once is None:
                    return "" if how_often in ("?", "*") else None
                return f"(?:{once}){how_often}"

    def _rule(self, name: str, skip: str) -> str | None:
        if name not in self._rules:
            _refuse(self._param, f"it uses `{name}`, which it does not define")
        if self._within[name] >= self._depth:
            return None
        self._within[name] += 1
        self.reached = max(self.reached, self._within[name])
        terminal = _is_terminal(name)
        pattern = self.written(self._rules[name], "" if terminal else skip)
        self._within[name] -= 1
        return f"{skip}{pattern}" if terminal and pattern is not None else pattern


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _refuse(param: str, reason: str) -> NoReturn:
    raise _refusal(param, reason)


def _refusal(param: str, reason: str) -> RequestError:
    return invalid(param, f"can't be enforced: {reason}.")


def _tokens(text: str, param: str, budget: StepBudget) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        budget.spend(param)
        found = _TOKEN.match(text, position)
        if found is None:
            _refuse(param, f"it is not Lark at {short(text[position : position + 20])}")
        position = found.end()
        kind = str(found.lastgroup)
        if kind == "line":
            # An alternative may begin the next line.
            if text[position : position + 1] != "|":
                yield "line", ""
        elif kind != "space":
            yield kind, found[0]
    yield "line", ""
    yield "end", ""


class _Reader:
    """Reads a grammar in Lark: its rules and terminals, and what it imports and ignores."""

    def __init__(self, tokens: Iterator[tuple[str, str]], param: str) -> None:
        self.rules: dict[str, _Node] = {}
        self.skipped: list[_Node] = []
        """What may stand before each terminal of a rule."""
        self._tokens = tokens
        self._param = param
        self._kind, self._text = next(tokens)

    def read(self) -> None:
        """Read it to the end. Raises :class:`RequestError`."""
        while self._kind != "end":
            if self._kind == "line":
                self._step()
            elif self._kind == "statement":
                self._statement()
            else:
                self._rule()

    def _step(self) -> str:
        text = self._text
        self._kind, self._text = next(self._tokens, ("end", ""))
        return text

    def _is_at(self, *marks: str) -> bool:
        return self._kind == "mark" and self._text in marks

    def _takes(self, mark: str) -> bool:
        found = self._is_at(mark)
        if found:
            self._step()
        return found

    def _needs(self, kind: str, text: str | None = None) -> str:
        if self._kind != kind or text not in (None, self._text):
            _refuse(self._param, f"it is not Lark at {short(self._text or 'the end of a line')}")
        return self._step()

    def _statement(self) -> None:
        match self._step():
            case "%import":
                self._import()
            case "%ignore":
                self.skipped.append(self._alternatives())
            case "%llguidance":
                while self._kind not in ("line", "end"):
                    self._step()
            case word:
                _refuse(self._param, f"`{word}` is not supported")

    def _import(self) -> None:
        path = [self._needs("name")]
        while self._takes("."):
            path.append(self._needs("name"))
        names = [path[-1]]
        if len(path) == 1 and self._takes("("):
            names = [self._needs("name")]
            while self._takes(","):
                names.append(self._needs("name"))
            self._needs("mark", ")")
        alias = self._needs("name") if self._takes("->") else None
        for name in names:
            if path[0] != "common" or name not in _COMMON:
                _refuse(self._param, f"it imports `{name}`, which is not known")
            self.rules[alias or name] = _Text(f"(?:{_COMMON[name]})")

    def _rule(self) -> None:
        name = self._needs("name").lstrip("!?")
        if self._takes("."):
            self._needs("number")
        self._needs("mark", ":")
        self.rules[name] = self._alternatives()
        self._needs("line")

    def _alternatives(self) -> _Node:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._kind not in ("line", "end") and not self._is_at("|", ")", "]"):
            if self._takes("->"):
                self._needs("name")
            else:
                parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else _Sequence(parts)

    def _repeated(self) -> _Node:
        atom = self._atom()
        if self._is_at("?", "*", "+"):
            return _Repeated(atom, self._step())
        if self._takes("~"):
            least = self._needs("number")
            most = self._needs("number") if self._takes("..") else least
            return _Repeated(atom, f"{{{least},{most}}}")
        return atom

    def _atom(self) -> _Node:
        if self._takes("("):
            inner = self._alternatives()
            self._needs("mark", ")")
            return inner
        if self._takes("["):
            inner = self._alternatives()
            self._needs("mark", "]")
            return _Repeated(inner, "?")
        if self._kind == "string":
            first = self._step()
            if self._takes(".."):
                last = self._needs("string")
                return _Text(f"[{self._literal(first)}-{self._literal(last)}]")
            text = self._literal(first)
            return _Text(f"(?i:{text})" if first.endswith("i") else text)
        if self._kind == "regex":
            return _Text(self._regex(self._step()))
        return _Name(self._needs("name").lstrip("!?"))

    def _literal(self, quoted: str) -> str:
        """Return the regular expression of a text in quotes."""
        text = _ESCAPE.sub(_character, quoted.removesuffix("i")[1:-1])
        return _SIGNS.sub(_escaped, text)

    def _regex(self, quoted: str) -> str:
        body, _, flags = quoted[1:].rpartition("/")
        if set(flags) - set("imsu"):
            _refuse(self._param, f"the flags `{flags}` are not supported")
        body = body.replace("\\/", "/")
        flags = flags.replace("u", "")
        return f"(?{flags}:{body})" if flags else f"(?:{body})"


def _character(found: re.Match[str]) -> str:
    *numbers, letter = found.groups()
    number = next(filter(None, numbers), None)
    if number is None:
        return _LETTERS.get(letter, letter)
    code = int(number, 16)
    # Half of a pair is no character, and neither is what lies beyond the last one.
    return chr(code).encode("utf-8", "replace").decode() if code <= sys.maxunicode else "?"


def _escaped(found: re.Match[str]) -> str:
    return _CONTROLS.get(found[0]) or f"\\{found[0]}"
