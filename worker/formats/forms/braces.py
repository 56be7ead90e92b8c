"""Tool calls as Gemma 4 and FunctionGemma write them: ``call:name{key:value,...}``, with special
markers around strings.

They are read here and not by mlx-vlm's parser: that one ends a call at the first brace that seems
to match, even inside a string, and returns the text before it as if it were everything.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lmx.worker.formats.family import CallWriter, Rules, SpecialTokens, Tool
from lmx.worker.formats.forms.arguments import (
    ANNOTATIONS,
    NARROWING,
    Schema,
    TagForm,
    members,
    separated,
    text_value,
)
from lmx.worker.formats.forms.json import skip_stray, spill_rest, value_of
from lmx.worker.schemas.grammar import guided, quoted
from lmx.worker.text.feed import PartSink, Steps, TextFeed
from lmx.worker.text.json_scan import read_json

# The name begins with no space: otherwise a long row of spaces takes quadratic time.
_NAME: Final = re.compile(r"(?:call)?:?\s*(\S.*)")
_MAX_DEPTH: Final = 100
_SCALARS: Final = ("string", "integer", "number", "boolean", "null")

_Text = Callable[[str], str]


class BraceForm(NamedTuple):
    """The markers in which the families with this form differ."""

    start: str
    """The marker before a call."""
    end: str
    """The marker behind it."""
    quote: str
    """The marker before and behind a string."""


def read_brace_call(feed: TextFeed, sink: PartSink, form: BraceForm) -> Steps[bool]:
    """Read one call up to and including its end marker. Arguments are passed on as JSON, as they
    come. The feed must be marked. Returns False if it is no call of a known tool."""
    pieces: list[str] = []
    brace = yield from feed.until(("{", "(", form.end), pieces.append)
    match = _NAME.fullmatch("".join(pieces).strip())
    name = match.group(1) if match else ""
    if name not in sink.names:
        # Models put a namespace before the name now and then.
        name = name.rpartition(":")[2]
    if brace not in ("{", "(") or name not in sink.names:
        return False
    feed.unread(1)
    feed.unmark()
    sink.begin_call(name)
    if not (yield from _Values(feed, sink, form).read()):
        yield from spill_rest(feed, sink, form.end)
        return True
    yield from skip_stray(feed, form.end)
    yield from feed.skip()
    yield from feed.starts((form.end,))
    return True


_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}


class _Values:
    """Reads the values of one call. What it passes on is JSON as soon as the brackets that are open
    are closed, so a separator and a key are held back until their value begins."""

    def __init__(self, feed: TextFeed, sink: PartSink, form: BraceForm) -> None:
        self._feed = feed
        self._sink = sink
        self._form = form
        self._held = ""
        self._open: list[str] = []

    def read(self) -> Steps[bool]:
        """Pass on the object of arguments; return whether it is whole and right. If something in it
        is wrong, it is closed."""
        whole = yield from self._members()
        if not whole and not self._feed.ended:
            self._sink.arguments("".join(reversed(self._open)))
            self._sink.write(self._held)
        return whole

    def _emit(self, text: str) -> None:
        if text:
            self._sink.arguments(self._held + text)
            self._held = ""

    def _value(self) -> Steps[bool]:
        feed, form = self._feed, self._form
        yield from feed.skip()
        char = yield from feed.char()
        if char in ("{", "["):
            return len(self._open) <= _MAX_DEPTH and (yield from self._members())
        if char == '"':
            return (yield from read_json(feed, self._emit, self._sink.write))
        if (yield from feed.starts((form.quote,))):
            return (yield from self._quoted())
        if char == "'" and (text := (yield from self._single_quoted())) is not None:
            self._emit(f'"{_escaped(text)}"')
            return True
        word: list[str] = []
        marker = yield from feed.until((",", "}", "]", ")", form.end), word.append)
        feed.unread(len(marker or ""))
        text = "".join(word).strip()
        if marker is None or not text or marker == form.end:
            self._held += text
            return False
        self._emit(_literal(text))
        return True

    def _quoted(self) -> Steps[bool]:
        """Pass on a text up to the marker behind it, which is one where a value may end."""
        feed, form = self._feed, self._form
        self._emit('"')
        self._open.append('"')
        while (yield from feed.until((form.quote,), self._text, False)):
            space = yield from feed.skip()
            following = yield from feed.starts((",", "}", "]", ")", form.end))
            feed.unread(len(following or ""))
            if following or not (yield from feed.char()):
                self._emit(self._open.pop())
                return True
            self._text(form.quote + space)
        return False

    def _text(self, text: str) -> None:
        self._emit(_escaped(text))

    def _single_quoted(self) -> Steps[str | None]:
        """Return a text in single quotes, which end where a value may end; None if there is no such
        text."""
        feed = self._feed
        feed.mark()
        feed.read(1)
        pieces: list[str] = []
        while (yield from feed.until(("'", self._form.end), pieces.append)) == "'":
            space = yield from feed.skip()
            char = yield from feed.char()
            if char and char in ",}])":
                feed.unmark()
                return "".join(pieces)
            pieces.append("'" + space)
        feed.rewind()
        return None

    def _members(self) -> Steps[bool]:
        """Pass on an object or an array, whose first character is next."""
        feed, form = self._feed, self._form
        opening = feed.read(1)
        closing = _CLOSING[opening]
        is_object = opening != "["
        self._emit("{" if is_object else "[")
        self._open.append("}" if is_object else "]")
        separator = ""
        while True:
            yield from feed.skip(", \t\r\n")
            char = yield from feed.char()
            if char in ("", closing):
                feed.read(len(char))
                if char:
                    self._emit(self._open.pop())
                return bool(char)
            self._held = separator
            separator = ", "
            if is_object:
                key: list[str] = []
                marker = yield from feed.until((":", "{", "}", form.end), key.append)
                name = "".join(key).strip()
                if marker != ":":
                    self._held = name
                    feed.unread(len(marker or ""))
                    return False
                name = name.removeprefix(form.quote).removesuffix(form.quote)
                if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
                    name = name[1:-1]
                self._held += f'"{_escaped(name)}": '
            if not (yield from self._value()):
                return False


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _literal(word: str) -> str:
    """Return a number, true, false or null as it is, and any other word as a string."""
    try:
        value_of(word)
    except (ValueError, RecursionError):
        return f'"{_escaped(word)}"'
    return word


def brace_call(form: BraceForm) -> CallWriter:
    """Return the writer of calls in this form."""

    def write(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
        arguments = _object(rules, tool.parameters, form, special.lark)
        if arguments is None:
            return None
        opening = special.lark(f"{form.start}call:{tool.name}")
        return f"{opening} {arguments} {special.lark(form.end)}"

    return write


def _object(rules: Rules, schema: Schema, form: BraceForm, text: _Text) -> str | None:
    """Return the grammar of an object, its keys without quotes."""
    found = members(schema)
    if found is None:
        return None
    items = []
    for one in found:
        value = _value(rules, one.schema, form, text)
        if value is None or not re.fullmatch(r"[\w.$-]+", one.name):
            return None
        items.append((f"{quoted(one.name + ':')} {value}", one.required))
    return f'"{{" {separated(rules, items, quoted(","))} "}}"'


def _value(rules: Rules, schema: Schema, form: BraceForm, text: _Text) -> str | None:
    string = TagForm("", form.quote, form.quote, framed=False, any_json=True)
    if schema.get("type") == "string":
        body = text_value(rules, schema, string, text)
        if body is not None:
            return f"{text(form.quote)} {body}"
    items = schema.get("items")
    plain = (ANNOTATIONS | {"type", "items", "$defs", "definitions"}).issuperset(schema)
    if schema.get("type") == "array" and isinstance(items, dict) and plain:
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        one = _value(rules, {**items, **shared}, form, text)
        return one and f'"[" ({one} ("," {one})*)? "]"'
    if _has_no_object(schema):
        return f"%json {json.dumps(guided(schema))}"
    if schema.get("type") == "object":
        return _object(rules, schema, form, text)
    return None


def _has_no_object(schema: Any) -> bool:
    """Return whether a value can't be an object, whose keys have no quotes."""
    if not isinstance(schema, dict):
        return False
    match schema.get("type"):
        case str() as kind if kind in _SCALARS:
            return True
        case "array" if NARROWING.issuperset(schema):
            return _has_no_object(schema.get("items"))
        case list() as kinds:
            return set(kinds) <= set(_SCALARS)
    return "anyOf" in schema and all(_has_no_object(one) for one in schema["anyOf"])
