"""Tool calls that are tags with one parameter each.

A parameter is text; the tool's schema decides which type it has. A value that may be a string is
the text as it stands, and is passed on as it comes, unless it is the word "null" and null is
allowed. Other values are read as JSON, or as Python's literals, when they are complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from lmx.protocol.host.python_source import python_value
from lmx.worker.formats.family import CallForm, CallWriter, Rules, SpecialTokens, Tool
from lmx.worker.formats.forms.arguments import ArgumentTypes, TagForm, tagged_arguments
from lmx.worker.formats.forms.json import json_text, read_arguments, read_json_calls, value_of
from lmx.worker.schemas.disjoint import type_of
from lmx.worker.text.feed import PartSink, Steps, TextFeed, discard

_MAX_WORDS: Final = 200
# A parameter's name, and whether its value is text.
_TYPED: Final = re.compile(r'"([^"]*)"\s+string="(true|false)"')


@dataclass(frozen=True, slots=True)
class XmlForm:
    """How a family writes a call."""

    end: str
    """The marker after the last call."""
    function: str
    """The text before the name; it may be ""."""
    name_end: str
    parameter: str
    key_end: tuple[str, ...]
    """The text after a parameter's name. It may be two tags with white space between them. The
    first of two closes the name, which is read without its opening tag, or with another one, too.
    """
    parameter_end: str
    function_end: str
    """The text that ends a call. If it is "", the call ends with ``end``."""
    framed: bool
    """Whether a value is text as it stands, unless it is framed: a line break before it doesn't
    belong to it, and then one behind it doesn't either. Otherwise one on either side never does."""
    typed: bool = False
    """Whether each parameter's name is followed by its type, text (``string="true"``) or JSON."""

    @property
    def key_close(self) -> tuple[str, ...]:
        """The tag that closes a parameter's name, if it has one of its own."""
        return self.key_end[:-1]

    @property
    def tags(self) -> tuple[str, ...]:
        """What may come after a parameter."""
        return tuple(tag for tag in (self.parameter, self.function_end, self.end) if tag)

    def argument(
        self, open: str, close: str, *, any_json: bool = False, open_json: str | None = None
    ) -> TagForm:
        """Return how an argument is enforced so that it is read back in this form."""
        return TagForm(open, close, self.parameter_end, self.framed, any_json, open_json, self.tags)

    def call(
        self,
        name: str,
        key: str,
        after: str = "",
        *,
        any_json: bool = False,
        open_json: str | None = None,
    ) -> CallWriter:
        """Return the writer of calls in this form. ``name`` and ``key`` are what follows
        ``function`` and ``parameter``, with ``{}`` in place of the names; ``after`` follows each
        end. ``open_json`` takes the place of ``key`` before a value that is not a string."""
        opening = None if open_json is None else self.parameter + open_json
        argument = self.argument(
            self.parameter + key, self.parameter_end + after, any_json=any_json, open_json=opening
        )
        return tagged_call(self.function + name, argument, self.function_end + after)


def xml_calls(start: str, form: XmlForm, tokens: tuple[str, ...] = ()) -> tuple[CallForm, ...]:
    """Return how calls are read: in a section that begins with ``start``, and without one, which
    models forget."""
    section = CallForm(start, form.end, partial(read_xml_calls, form=form), tokens)
    if not form.function_end:
        return (section,)
    return (section, CallForm(form.function, "", partial(read_functions, form=form), tokens))


def tagged_call(before: str, form: TagForm, after: str) -> CallWriter:
    """Return the writer of calls with tags for arguments. ``before`` has ``{}`` for the name."""

    def write(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
        arguments = tagged_arguments(rules, tool.parameters, form, special.lark)
        if arguments is None:
            return None
        return f"{special.lark(before.format(tool.name))} {arguments} {special.lark(after)}"

    return write


def read_xml_calls(feed: TextFeed, sink: PartSink, form: XmlForm) -> Steps[bool]:
    """Read calls up to and including the end marker (see :data:`Reader`), JSON calls too."""
    begun = sink.calls
    yield from feed.skip()
    if (yield from feed.char()) in ("{", "["):
        return (yield from read_json_calls(feed, sink, form.end))
    while True:
        yield from feed.skip()
        if form.function and (yield from feed.starts((form.function, form.end))) != form.function:
            return sink.calls > begun
        name = yield from _read_name(feed, form, sink.names)
        if name not in sink.names:
            if not form.function_end:
                return False
            # The calls next to it may be good.
            closed_by = yield from feed.until((form.function_end, form.end), discard)
            if closed_by != form.function_end:
                return False
            sink.write(feed.marked())
            feed.mark()
            continue
        closed_by = yield from _read_call(feed, sink, form, name)
        feed.mark()
        if closed_by != form.function_end:
            return True


def read_functions(feed: TextFeed, sink: PartSink, form: XmlForm) -> Steps[bool]:
    """Read calls without the markers of a section, from behind the tag of the first function.

    Only what names a known tool and continues like a call is a call: the tag may stand in any text.
    The feed must be marked. Returns False if there is no call.
    """
    written = (f"{one}{form.name_end}" for one in _written(sink.names))
    names = sorted(written, key=len, reverse=True)
    while True:
        named = yield from feed.starts(names)
        if named is None:
            return False
        name = _function(named.removesuffix(form.name_end), sink.names)
        yield from feed.skip()
        opening = yield from feed.starts((form.parameter, form.function_end, "{"))
        if opening is None:
            return False
        feed.unread(len(opening))
        yield from _read_call(feed, sink, form, name)
        feed.mark()
        yield from feed.skip()
        following = yield from feed.starts((form.function, form.end))
        if following is None:
            feed.rewind()
        if following != form.function:
            return True


def _read_call(feed: TextFeed, sink: PartSink, form: XmlForm, name: str) -> Steps[str | None]:
    """Read from behind a function's name to its end; return the text that ended it. Arguments as
    JSON are read too."""
    yield from feed.skip()
    if (yield from feed.char()) == "{":
        end = form.function_end or form.end
        yield from read_arguments(feed, sink, name, end)
        yield from feed.skip()
        return (yield from feed.starts((end,)))
    feed.unmark()
    sink.begin_call(name)
    sink.arguments("{")
    closed_by = yield from _read_parameters(feed, sink, form, name)
    if closed_by:
        sink.arguments("}")
    return closed_by


def _read_name(feed: TextFeed, form: XmlForm, names: Collection[str]) -> Steps[str]:
    name: list[str] = []
    if form.name_end:
        yield from feed.until((form.name_end,), name.append)
    elif (yield from feed.begins(_written(names))):
        markers = (form.parameter, form.end, "{", *form.key_close)
        marker = yield from feed.until(markers, name.append)
        if marker in form.key_close:
            # It closes the name of a parameter, which follows the function's name.
            text = "".join(name)
            begun = (one for one in names if re.match(rf"{re.escape(one)}[\s<]", text))
            name = [next(begun, text)]
            feed.unread(len(text) - len(name[0]))
        feed.unread(len(marker or ""))
    return _function("".join(name), names)


def _written(names: Collection[str]) -> list[str]:
    """Return how models write these names of functions."""
    doubled = [f"{name}.{name}" for name in names if "." not in name]
    return [f"{quote}{name}{quote}" for name in (*names, *doubled) for quote in ("", '"', "'")]


def _function(written: str, names: Collection[str]) -> str:
    """Return the name of a function as it is among ``names``, if it is one of them."""
    name = _unquoted(written)
    # Muse names a function without a namespace twice.
    namespace, _, own = name.partition(".")
    return own if name not in names and namespace == own else name


def _read_parameters(feed: TextFeed, sink: PartSink, form: XmlForm, name: str) -> Steps[str | None]:
    """Read to the end of the call; return the text that ended it, None if nothing did."""
    separator = ""
    types = ArgumentTypes(sink.parameters(name))
    while True:
        # Models write a word between the parameters now and then.
        key: list[str] = []
        tag = yield from feed.until((*form.tags, *form.key_close), key.append)
        emit: Callable[[str], Any] = discard
        if tag == form.parameter:
            key.clear()
            emit = key.append
        elif tag not in form.key_close:
            return tag
        for part in form.key_end if tag == form.parameter else form.key_end[1:]:
            if not (yield from feed.until((part,), emit)):
                return None
            emit = discard
        # The name may have another tag before it than its own.
        written = "".join(key).rpartition(">")[2] if form.key_close else "".join(key)
        value = _Value(sink, form, types, written.strip(), separator)
        if not (yield from _read_value(feed, value, form, sink.parameters(name)["properties"])):
            return None
        value.close()
        separator = ", "


def _read_value(
    feed: TextFeed, value: _Value, form: XmlForm, parameters: Collection[str]
) -> Steps[bool]:
    """Read up to and including the tag that ends a value; return whether there is one. The same tag
    in the value's text is followed by other text than one that ends a value is. A model may forget
    it before those with which the answer ends."""
    ends = [tag for tag in (form.parameter_end, form.function_end) if tag]
    while tag := (yield from feed.until(ends, value.add, whole=False)):
        if tag == form.function_end:
            if (yield from _answer_ends(feed, form)):
                return True
            value.add(tag)
            continue
        if (yield from _words_follow(feed, form, parameters)):
            return True
        space = yield from feed.skip()
        tag = yield from feed.starts(form.tags)
        # The whole text may end within the tag.
        if tag or (feed.ended and any(one.startswith(feed.rest) for one in form.tags)):
            feed.unread(len(tag or ""))
            return True
        if form.key_close and parameters:
            keys = "|".join(map(re.escape, parameters))
            slip = rf"(?:<[^<>]*>)?\s*(?:{keys})\s*{re.escape(form.key_close[0])}"
            if re.match(slip, (yield from feed.peek(_MAX_WORDS))):
                return True
        value.add(form.parameter_end + space)
    return False


def _answer_ends(feed: TextFeed, form: XmlForm) -> Steps[bool]:
    """Return whether the text ends behind the end of the call, of which the first tag was read. It
    is put back then."""
    feed.mark(len(form.function_end))
    yield from feed.skip()
    closed = yield from feed.starts((form.end,))
    yield from feed.skip()
    ends = closed is not None and (yield from feed.char()) == ""
    feed.rewind()
    if not ends:
        feed.read(len(form.function_end))
    return ends


def _words_follow(feed: TextFeed, form: XmlForm, parameters: Collection[str]) -> Steps[bool]:
    """Return whether a few words come next, which models write between the tags now and then, and
    the call continues or ends behind them."""
    feed.mark()
    yield from feed.skip()
    after = yield from feed.char()
    rest = (yield from feed.peek(_MAX_WORDS)) if after not in ("", "<") else ""
    feed.rewind()
    if not rest:
        return False
    ends = [f"{re.escape(form.end)}\\s*(?:<|$)"]
    if form.function_end:
        following = "|".join(map(re.escape, (form.function, form.end)))
        ends.append(f"{re.escape(form.function_end)}\\s*(?:{following}|$)")
    ends += [f'{re.escape(form.parameter)}"?{re.escape(key)}\\b' for key in parameters]
    return re.match(f"[^<]*(?:{'|'.join(ends)})", rest) is not None


def _unquoted(name: str) -> str:
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        return name[1:-1]
    return name


class _Value:
    """One parameter, from its text to JSON."""

    def __init__(
        self, sink: PartSink, form: XmlForm, types: ArgumentTypes, key: str, separator: str
    ) -> None:
        self._sink = sink
        self._form = form
        self._separator = separator
        self._opened = False
        # Whether a line break at the end doesn't belong to the value.
        self._cuts_end = True
        self._held = ""
        typed = _TYPED.fullmatch(key) if form.typed else None
        self._key = typed[1] if typed else _unquoted(key)
        self._types = frozenset() if typed else types.of(self._key)
        self._streams = typed[2] == "true" if typed else "string" in self._types
        self._nullable = "null" in self._types
        if form.typed and self._streams:
            # The text stays as it is, even if it is empty.
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
            begins = self._held.removeprefix("\n")
            if not begins or (self._nullable and "null".startswith(begins.strip())):
                return
            self._cuts_end = not self._form.framed or begins != self._held
            self._held = begins
            self._open()
        kept = self._held.removesuffix("\n") if self._cuts_end else self._held
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
        """Return the value as JSON: as a string if its type is not allowed."""
        text = self._held.strip()
        if not self._streams:
            return literal(text, self._types) or json_text(text)
        if self._nullable and text == "null":
            return text
        return json_text(self._held.strip("\n"))


def literal(text: str, types: frozenset[str] = frozenset()) -> str | None:
    """Return a value of JSON, or of Python's literals, as JSON; None if ``text`` is not a value, or
    not of these types. No types: any will do."""
    for read in (value_of, python_value, _word):
        try:
            value = read(text)
            if types and type_of(value) not in types:
                continue
            return json_text(value)
        except (ValueError, TypeError, LookupError, SyntaxError, RecursionError, MemoryError):
            continue  # The last two are what Python's parser raises for deep nesting.
    return None


def _word(text: str) -> Any:
    return {"true": True, "false": False, "null": None, "none": None}[text.lower()]
