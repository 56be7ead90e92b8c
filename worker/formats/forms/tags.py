"""Tool calls that are tags with one parameter each.

A parameter is text; its type is in the tool's schema. String parameters are passed on as they come.
The others are converted by the family's own parser when they are complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lmx.worker.formats.family import CallWriter, Rules, SpecialTokens, Tool
from lmx.worker.formats.forms.arguments import TagForm, tagged_arguments
from lmx.worker.formats.forms.json import json_text, read_json_calls
from lmx.worker.formats.registry import parse_call
from lmx.worker.text.feed import PartSink, Steps, TextFeed, discard

# A parameter's name, and whether its value is text.
_TYPED: Final = re.compile(r'"([^"]*)"\s+string="(true|false)"')


@dataclass(frozen=True, slots=True)
class XmlForm:
    """How a family writes a call."""

    parser: str
    end: str
    """The marker after the last call."""
    function: str
    """The text before the name; it may be ""."""
    name_end: str
    parameter: str
    key_end: tuple[str, ...]
    """The text after a parameter's name. It may be two tags with white space between them."""
    parameter_end: str
    function_end: str
    """The text that ends a call. If it is "", the call ends with ``end``."""
    strip: bool
    """Whether white space around a value doesn't belong to it; otherwise only one line break on
    either side doesn't."""
    like: XmlForm | None = None
    """The form that ``parser`` knows, if it is not this one."""
    typed: bool = False
    """Whether each parameter's name is followed by its type, text (``string="true"``) or JSON.
    ``parser`` is not used then."""

    def example(self, name: str, key: str, value: str) -> str:
        """Return a call with this one parameter, in the form of the family's parser."""
        key_end = "".join(self.key_end)
        return (
            f"{self.function}{name}{self.name_end}"
            f"{self.parameter}{key}{key_end}{value}{self.parameter_end}{self.function_end}"
        )


def tagged_call(before: str, form: TagForm, after: str) -> CallWriter:
    """Return the writer of calls with a tag for each argument. ``before`` has the function's name
    in place of ``{}``."""

    def write(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
        arguments = tagged_arguments(rules, tool.parameters, form, special.lark)
        if arguments is None:
            return None
        return f"{special.lark(before.format(tool.name))} {arguments} {special.lark(after)}"

    return write


def read_xml_calls(feed: TextFeed, sink: PartSink, form: XmlForm) -> Steps[bool]:
    """Read calls up to and including the end marker; JSON calls are read too.

    The feed must be marked; the text that is marked at the end turned out to be no call. Returns
    False if no part of it is a call.
    """
    begun = sink.calls
    yield from feed.skip()
    if (yield from feed.char()) in ("{", "["):
        return (yield from read_json_calls(feed, sink, form.end))
    while True:
        yield from feed.skip()
        if form.function and (yield from feed.starts((form.function, form.end))) != form.function:
            return sink.calls > begun
        name = yield from _read_name(feed, form)
        if name not in sink.names:
            return False
        feed.unmark()
        sink.begin_call(name)
        sink.arguments("{")
        closed_by = yield from _read_parameters(feed, sink, form, name)
        if closed_by:
            sink.arguments("}")
        feed.mark()
        if closed_by != form.function_end:
            return True


def _read_name(feed: TextFeed, form: XmlForm) -> Steps[str]:
    name: list[str] = []
    if form.name_end:
        yield from feed.until((form.name_end,), name.append)
    else:
        marker = yield from feed.until((form.parameter, form.end), name.append)
        feed.untake(len(marker or ""))
    return _unquoted("".join(name))


def _read_parameters(feed: TextFeed, sink: PartSink, form: XmlForm, name: str) -> Steps[str | None]:
    """Read to the end of the call; return the text that ended it, None if the whole text ended
    first."""
    tags = tuple(tag for tag in (form.parameter, form.function_end, form.end) if tag)
    separator = ""
    while True:
        # The family's parser ignores text between the parameters too.
        tag = yield from feed.until(tags, discard)
        if tag != form.parameter:
            return tag
        key: list[str] = []
        give: Callable[[str], Any] = key.append
        for part in form.key_end:
            if not (yield from feed.until((part,), give)):
                return None
            give = discard
        value = _Value(sink, form, name, "".join(key).strip(), separator)
        if not (yield from feed.until((form.parameter_end,), value.add, whole=False)):
            return None
        value.close()
        separator = ", "


def _unquoted(name: str) -> str:
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        return name[1:-1]
    return name


class _Value:
    """One parameter, from its text to JSON."""

    __slots__ = ("_form", "_held", "_key", "_name", "_opened", "_separator", "_sink", "_streams")

    def __init__(self, sink: PartSink, form: XmlForm, name: str, key: str, separator: str) -> None:
        self._sink = sink
        self._form = form
        self._name = name
        self._separator = separator
        self._opened = False
        self._held = ""
        typed = _TYPED.fullmatch(key) if form.typed else None
        self._key = typed[1] if typed else _unquoted(key)
        self._streams = typed[2] == "true" if typed else _is_string(sink, name, self._key)
        if form.typed and self._streams:
            # The text stays as it is, even if it is empty or the word "null".
            self._open()

    def add(self, text: str) -> None:
        self._held += text
        if not self._streams:
            return
        if self._form.typed:
            self._sink.arguments(json_text(self._held)[1:-1])
            self._held = ""
            return
        if not self._opened:
            # "null" is no string to some of the parsers.
            begins = self._held.strip() if self._form.strip else self._held.removeprefix("\n")
            if "null".startswith(begins.strip().lower()):
                return
            self._held = self._held.lstrip() if self._form.strip else begins
            self._open()
        kept = self._held.rstrip() if self._form.strip else self._held.removesuffix("\n")
        self._sink.arguments(json_text(kept)[1:-1])
        self._held = self._held[len(kept) :]

    def _open(self) -> None:
        self._sink.arguments(f'{self._separator}{json_text(self._key)}: "')
        self._opened = True

    def close(self) -> None:
        if self._opened:
            self._sink.arguments('"')
        else:
            value = self._converted()
            self._sink.arguments(f"{self._separator}{json_text(self._key)}: {value}")

    def _converted(self) -> str:
        """Return the value as JSON: a string if the parser can't make anything else of it."""
        example = (self._form.like or self._form).example(self._name, self._key, self._held)
        try:
            if self._form.typed:
                return json_text(json.loads(self._held, parse_constant=_no_constant))
            call = parse_call(self._form.parser, example, self._sink.tools)[0]
            return json_text(call["arguments"][self._key])
        except (ValueError, TypeError, LookupError, RecursionError):
            text = self._held
            return json_text(text.strip() if self._form.strip else text.strip("\n"))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _is_string(sink: PartSink, name: str, key: str) -> bool:
    for tool in sink.tools:
        if tool["function"]["name"] == name:
            schema = tool["function"]["parameters"]["properties"].get(key)
            return isinstance(schema, dict) and schema.get("type") == "string"
    return False
