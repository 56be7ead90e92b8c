"""Tool calls that are JSON: an object with a name and arguments, or an array of such objects; and
the object of arguments alone, for families that write the name before it."""

import json
from collections.abc import Mapping
from enum import Enum, auto
from functools import partial
from string import Template
from typing import Any, Final, NamedTuple

from lmx.worker.formats.family import CallForm, CallGrammar, CallWriter, Rules, SpecialTokens, Tool
from lmx.worker.schemas.grammar import guided
from lmx.worker.text.feed import PartSink, Steps, TextFeed, discard
from lmx.worker.text.json_scan import read_json, read_json_text


class CallKeys(NamedTuple):
    """A family's names for the two members of a call."""

    name: tuple[str, ...]
    arguments: tuple[str, ...]


COMMON_KEYS: Final = CallKeys(("name",), ("arguments", "parameters"))

# Other keys that a call may have. With any further key a bare object is data and not a call, and
# so is one without arguments: they may be what stands under that key.
_HARMLESS: Final = frozenset({"type", "id", "tool_call_id", "function"})

FENCE: Final = "```"
_FENCED_LANGUAGES: Final = frozenset({"", "json", "tool_call"})


class _Outcome(Enum):
    NO_CALL = auto()
    CALLED = auto()
    BROKEN = auto()


def read_json_calls(
    feed: TextFeed, sink: PartSink, end: str, keys: CallKeys = COMMON_KEYS, bare: bool = False
) -> Steps[bool]:
    """Read calls up to and including the marker ``end``; if it is "", as far as there are calls.

    See :data:`Reader`. ``bare`` means that no marker came before, so that only text that is
    certainly a call counts.
    """
    begun = sink.calls
    yield from feed.skip()
    if not bare and (yield from feed.starts((FENCE,))):
        # A language may follow.
        yield from feed.until(("\n",), discard)
        yield from feed.skip()
    if (yield from feed.char()) == "[":
        feed.read(1)
    while True:
        yield from feed.skip()
        char = yield from feed.char()
        if char == "{":
            outcome = yield from _read_call(feed, sink, keys, bare)
            if outcome is _Outcome.NO_CALL:
                return False
            if outcome is _Outcome.BROKEN:
                yield from spill_rest(feed, sink, end)
                return True
            feed.mark()
        elif end and (yield from feed.starts((end,))):
            return sink.calls > begun
        elif sink.calls == begun:
            return False
        elif char and char in ",;]}`":
            # Small models often write one closing brace too many, or a fence.
            feed.read(1)
            feed.mark()
        else:
            feed.rewind()
            return True


def read_bare_json_calls(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read calls without any marker before them, with or without a fence of three backticks."""
    yield from feed.skip()
    char = yield from feed.char()
    if not char or char not in "{[`":
        return False
    end = ""
    if char == "`":
        if not (yield from feed.starts((FENCE,))):
            return False
        language: list[str] = []
        broken = yield from feed.until(("\n", "`"), language.append)
        if broken != "\n" or "".join(language).strip() not in _FENCED_LANGUAGES:
            return False
        end = FENCE
    return (yield from read_json_calls(feed, sink, end, bare=True))


def json_calls(start: str, end: str, keys: CallKeys = COMMON_KEYS) -> CallForm:
    """Return how JSON calls between two markers are read. If ``end`` is "", they end by
    themselves."""
    return CallForm(start, end, partial(read_json_calls, end=end, keys=keys))


def json_array(start: str, end: str) -> tuple[CallForm, CallGrammar]:
    """Return how calls are read and written as one array of objects with a name and arguments,
    between two markers. If ``end`` is "", the array ends by itself."""
    call = json_call('{"name": $json_name, "arguments": ', "}")
    return (
        json_calls(start, end),
        CallGrammar(call, open=f"{start}[", between=", ", close=f"]{end}"),
    )


def json_call(before: str, after: str = "") -> CallWriter:
    """Return the writer of calls whose arguments are a JSON object between two texts. In
    ``before``, ``$name`` is the function's name, and ``$json_name`` the same as a JSON string."""

    def write(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
        opening = Template(before).substitute(name=tool.name, json_name=json.dumps(tool.name))
        return f"{special.lark(opening)} {json_arguments(tool)} {special.lark(after)}"

    return write


def json_arguments(tool: Tool) -> str:
    """Return Lark for the arguments of a call as a JSON object."""
    return f"%json {json.dumps(guided(tool.parameters))}"


def read_arguments(feed: TextFeed, sink: PartSink, name: str, end: str) -> Steps[bool]:
    """Read the object of arguments of a call to ``name``, with or without a fence, and any wrong
    text in it, up to and including ``end``. Returns False if it is no object or ``name`` is no
    tool."""
    yield from feed.skip()
    fenced = yield from feed.starts((FENCE,))
    if fenced:
        # A language may follow.
        marker = yield from feed.until(("\n", "{"), discard)
        feed.unread(len(marker or ""))
        yield from feed.skip()
    if name not in sink.names or (yield from feed.char()) != "{":
        return False
    feed.unmark()
    sink.begin_call(name)
    if not (yield from read_json(feed, sink.arguments, sink.write)):
        yield from spill_rest(feed, sink, end)
    elif end:
        yield from skip_stray(feed, end)
    elif fenced:
        yield from feed.skip()
        yield from feed.starts((FENCE,))
    return True


def skip_stray(feed: TextFeed, end: str) -> Steps[None]:
    """Read a fence, and the brace too many that small models often write, if ``end`` is next."""
    feed.mark()
    yield from feed.skip("}` \t\r\n")
    if (yield from feed.char()):
        found = yield from feed.starts((end,))
        if found is None:
            feed.rewind()
        else:
            feed.unread(len(found))
    feed.unmark()


def spill_rest(feed: TextFeed, sink: PartSink, end: str) -> Steps[None]:
    """Read what follows arguments that went wrong, up to and including the marker ``end``.

    The call's beginning was passed on and can't be taken back. Arguments that are no JSON would end
    many a client, so they were closed; the rest is content, so that nothing is lost.
    """
    if end and not feed.ended:
        yield from feed.until((end,), sink.write)


def _read_call(feed: TextFeed, sink: PartSink, keys: CallKeys, bare: bool) -> Steps[_Outcome]:
    """Read an object. Arguments are passed on as they come if the name came before them."""
    feed.read(1)
    name: str | None = None
    members: dict[str, Any] = {}
    outcome = _Outcome.NO_CALL
    while True:
        yield from feed.skip(", \t\r\n")
        if (yield from feed.char()) == "}":
            feed.read(1)
            break
        key = yield from read_key(feed)
        if key is None:
            return outcome
        is_foreign = key not in (*keys.name, *keys.arguments, *_HARMLESS)
        if bare and is_foreign and outcome is _Outcome.NO_CALL:
            return outcome
        yield from feed.skip()
        if outcome is _Outcome.CALLED:
            if not (yield from read_json(feed, discard)):
                return outcome
        elif name and key in keys.arguments and (yield from feed.char()) == "{":
            feed.unmark()
            sink.begin_call(name)
            outcome = _Outcome.CALLED
            if not (yield from read_json(feed, sink.arguments, sink.write)):
                return _Outcome.BROKEN
        else:
            text = yield from read_json_text(feed)
            if text is None:
                return outcome
            members[key] = text
            if key in keys.name:
                name = _name(text)
                if name not in sink.names:
                    return outcome
    if outcome is _Outcome.NO_CALL and (found := _call_of(members, keys, bare, sink)):
        name, arguments = found
        feed.unmark()
        sink.begin_call(name)
        sink.arguments(arguments)
        outcome = _Outcome.CALLED
    return outcome


def read_key(feed: TextFeed) -> Steps[str | None]:
    """Return the key of a member and read its colon, None if there is no key."""
    if (yield from feed.char()) not in ('"', "'"):
        return None
    text = yield from read_json_text(feed)
    if text is None:
        return None
    yield from feed.skip()
    if not (yield from feed.starts((":",))):
        return None
    return str(json.loads(text))


def _name(text: str) -> str | None:
    value = json.loads(text)
    return value.strip() if isinstance(value, str) else None


def _call_of(
    members: Mapping[str, str], keys: CallKeys, bare: bool, sink: PartSink
) -> tuple[str, str] | None:
    """Return name and arguments of a whole object, given the text of each member."""
    function = json.loads(members.get("function", "null"))
    if isinstance(function, dict):
        # OpenAI's API has this form in its history.
        try:
            inner = {key: json_text(value) for key, value in function.items()}
        except ValueError:
            return None  # 1e999 has become infinity.
        members = {**members, **inner}
    name = next((_name(members[key]) for key in keys.name if key in members), None)
    arguments = next((members[key] for key in keys.arguments if key in members), None)
    if name is None or name not in sink.names or (arguments is None and bare):
        return None
    value = json.loads(arguments or "null")
    if isinstance(value, str):
        arguments = value
        value = object_of(value)
    elif value is None:
        others = members.keys() - {*keys.name, *keys.arguments, *_HARMLESS}
        return None if others and sink.parameters(name)["properties"] else (name, "{}")
    return (name, arguments) if isinstance(value, dict) and arguments else None


def json_text(value: Any) -> str:
    """Return a value as JSON that can be sent. Half of a surrogate pair, which a model may write as
    an escape, stays an escape. Raises ``ValueError`` for infinity, ``TypeError`` for values that
    JSON doesn't have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text


def value_of(text: str) -> Any:
    """Return the value of a JSON text. Raises ``ValueError`` also for NaN and infinity, which
    Python's own parser takes, and ``RecursionError`` for what is too deep for it."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def object_of(text: str) -> dict[str, Any] | None:
    """Return the object of a JSON text; None if it is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
