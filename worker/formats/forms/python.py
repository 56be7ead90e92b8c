"""Tool calls as Python code: they are read when they are complete; and their grammar."""

import ast
import json
import keyword
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from lmx.protocol.host.python_source import python_tree
from lmx.worker.formats.family import Rules, SpecialTokens, Tool
from lmx.worker.formats.forms.arguments import (
    NARROWING,
    PLAIN_NUMBER,
    Schema,
    is_bare,
    members,
    separated,
)
from lmx.worker.formats.forms.json import FENCE, json_text, read_bare_json_calls, read_json_calls
from lmx.worker.schemas.grammar import guided, quoted
from lmx.worker.text.feed import PartSink, Steps, TextFeed

# In Python a backslash and u means another character if it is half of a surrogate pair.
_PYTHON_ESCAPES: Final = 'nrbtf\\"'

_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
"""Names that a call may have, and its arguments: not all of them are Python's identifiers."""
# Models that were shown JSON write these words as values.
_JSON_WORDS: Final = {"true": True, "false": False, "null": None}
# Brackets around calls, and a comment before them.
_BEFORE_NAMES: Final = ("(", "[", "#")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


def read_python_calls(feed: TextFeed, sink: PartSink, end: str) -> Steps[bool]:
    """Read calls up to and including the marker ``end``: a list of them, or one after the other.

    They are passed on when all are complete: a call that is cut off is no call. JSON is read too.
    The feed must be marked. Returns False if there is no call, or one of an unknown tool.
    """
    yield from feed.skip()
    opening = yield from feed.starts(("[",))
    space = yield from feed.skip()
    if (yield from feed.char()) == "{":
        return (yield from read_json_calls(feed, sink, end))
    if not (yield from feed.begins((*sink.names, *_BEFORE_NAMES))):
        return False
    feed.unread(len(opening or "") + len(space))
    text = yield from read_code(feed, end)
    return text is not None and _emit(text, sink)


def read_code(feed: TextFeed, end: str) -> Steps[str | None]:
    """Read up to and including the marker ``end``, which may also stand inside strings. Returns the
    text before it; None if it does not come."""
    text: list[str] = []
    scanned = 0
    quote = ""
    while (yield from feed.until((end,), text.append)):
        quote = _quote_after("".join(text[scanned:]), quote)
        if not quote:
            return "".join(text)
        scanned = len(text)
        text.append(end)
    return None


def _quote_after(code: str, quote: str) -> str:
    """Return the quotes of the string in which ``code`` ends, "" if it ends in none. It begins in
    a string with the quotes ``quote``."""
    at = 0
    while at < len(code):
        if quote:
            if code.startswith(quote, at):
                at += len(quote)
                quote = ""
            else:
                at += 2 if code[at] == "\\" else 1
        elif code[at] in "\"'":
            quote = code[at : at + 3] if code[at : at + 3] == code[at] * 3 else code[at]
            at += len(quote)
        else:
            at += 1
    return quote


def _read_bare_python_calls(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read a list of calls without any marker, or calls in a fence ``tool_code``."""
    yield from feed.skip()
    opening = yield from feed.starts((f"{FENCE}tool_code", "["))
    if opening is None:
        return False
    if opening != "[":
        return (yield from read_python_calls(feed, sink, FENCE))
    yield from feed.skip()
    name = yield from feed.starts([f"{name}(" for name in sink.names])
    if name is None:
        return False
    text = yield from _balanced(feed, ["]", ")"])
    return text is not None and _emit(f"[{name}{text}", sink)


def read_bare_calls(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read calls without any marker at the beginning of an answer: JSON, or Python as Llama 3.2 and
    4 and Gemma 3 write it. Only text that names a known tool is a call. The feed must be marked.
    Returns False if there is no call."""
    begun = sink.calls
    if (yield from read_bare_json_calls(feed, sink)):
        return True
    if sink.calls > begun:
        return False
    feed.rewind()
    feed.mark()
    return (yield from _read_bare_python_calls(feed, sink))


def _balanced(feed: TextFeed, awaited: list[str]) -> Steps[str | None]:
    """Read up to and including the bracket that closes the first open one; ``awaited`` are the
    closing brackets of all open ones. Returns None if it is missing, or a wrong one comes first."""
    text: list[str] = []
    while awaited:
        char = yield from feed.char()
        if not char:
            return None
        text.append(feed.read(1))
        if char in "\"'":
            if not (yield from _string(feed, char, text.append)):
                return None
        elif char in _CLOSING:
            awaited.append(_CLOSING[char])
        elif char in ")]}" and char != awaited.pop():
            return None
    return "".join(text)


def _string(feed: TextFeed, quote: str, emit: Callable[[str], Any]) -> Steps[bool]:
    while True:
        marker = yield from feed.until((quote, "\\", "\n"), emit)
        if marker is None or marker == "\n":
            return False
        emit(marker)
        if marker == quote:
            return True
        yield from feed.char()
        emit(feed.read(min(1, len(feed.rest))))


def _emit(text: str, sink: PartSink) -> bool:
    try:
        try:
            found = list(_calls(*_with_identifiers(text, sink)))
        except SyntaxError:
            found = list(_calls(*_with_identifiers(_with_breaks_escaped(text), sink)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False  # The last two are what Python's parser raises for deep nesting.
    if not found or any(name not in sink.names for name, _ in found):
        return False
    for name, arguments in found:
        sink.begin_call(name)
        sink.arguments(arguments)
    return True


_STRINGS: Final = (
    r"""'{3}(?:\\.|[^\\])*?'{3}|"{3}(?:\\.|[^\\])*?"{3}|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\""""
)


_LONG_STRINGS: Final = _STRINGS.replace(r"\n", "")
"""The same, and those with line breaks between single quotes, as models write code."""


_BREAK_OR_ESCAPE: Final = re.compile(r"\\(?:\r\n|.)|\r|\n", re.S)


def _escaped_break(found: re.Match[str]) -> str:
    """Return a line break as an escape, one behind a backslash with the backslash."""
    text = found[0]
    if not text.endswith(("\r", "\n")):
        return text
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _with_breaks_escaped(code: str) -> str:
    def escaped(found: re.Match[str]) -> str:
        text = found[0]
        if text[:3] in ("'''", '"""'):
            return text
        return _BREAK_OR_ESCAPE.sub(_escaped_break, text)

    return re.sub(_LONG_STRINGS, escaped, code, flags=re.S)


def _with_identifiers(text: str, sink: PartSink) -> tuple[str, Mapping[str, str]]:
    """Return the code with identifiers in place of names that are not identifiers (``read-file``,
    ``from``), and the names by these identifiers."""
    called = sorted(sink.names, key=len, reverse=True)
    given = {key for tool in sink.tools for key in tool["function"]["parameters"]["properties"]}
    odd = [
        (name, end)
        for names, end in ((called, r"\s*\("), (sorted(given, key=len, reverse=True), r"\s*=(?!=)"))
        for name in names
        if not _is_identifier(name)
    ]
    if not odd:
        return text, {}
    names = {f"lmx_name_{number}": name for number, (name, _) in enumerate(odd)}
    groups = [
        rf"(?P<{stand_in}>{re.escape(name)}(?={end}))"
        for stand_in, (name, end) in zip(names, odd, strict=True)
    ]
    pattern = rf"{_STRINGS}|(?<![\w.-])(?:{'|'.join(groups)})"
    return re.sub(pattern, lambda found: found.lastgroup or found.group(), text, flags=re.S), names


def _is_identifier(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _calls(text: str, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the arguments of each call. ``names`` are those that stand for others.
    Raises for text that is no call."""
    with warnings.catch_warnings():
        # Python warns about escapes that it doesn't know. Models write them.
        warnings.simplefilter("ignore")
        lines = python_tree(text.strip()).body
    for line in lines:
        if not isinstance(line, ast.Expr):
            raise TypeError("a line is not an expression")
        listed = line.value.elts if isinstance(line.value, ast.List | ast.Tuple) else [line.value]
        for call in listed:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
                raise TypeError("a line that is not a call with keyword arguments only")
            arguments = {
                names.get(str(one.arg), str(one.arg)): _value(one.value) for one in call.keywords
            }
            if len(arguments) < len(call.keywords) or "None" in arguments:
                raise TypeError("an argument is given twice, or has no name")
            yield names.get(call.func.id, call.func.id), json_text(arguments)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            names = [ast.literal_eval(key) if key else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise TypeError("a key is not a string")
            return dict(zip(names, map(_value, values), strict=True))
    return ast.literal_eval(node)


def python_call(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
    """Return the grammar of a call with keywords: ``name(a="b", c=1)``."""
    arguments = _arguments(rules, tool.parameters) if _NAME.fullmatch(tool.name) else None
    return arguments and f'{quoted(tool.name + "(")} {arguments} ")"'


def _arguments(rules: Rules, parameters: Schema) -> str | None:
    arguments = members(parameters)
    if arguments is None:
        return None
    items = []
    for one in arguments:
        if not _NAME.fullmatch(one.name):
            return None
        if is_bare(one.schema) and one.schema["type"] == "boolean":
            value = '("True" | "False")'
        elif is_bare(one.schema) and one.schema["type"] == "number":
            value = rules.terminal(PLAIN_NUMBER)
        elif _same_in_python(one.schema):
            value = f"%json {json.dumps(guided(one.schema, escapes=_PYTHON_ESCAPES))}"
        else:
            return None
        items.append((f"{quoted(one.name + '=')} {value}", one.required))
    return separated(rules, items, '", "')


def _same_in_python(schema: Any) -> bool:
    """Return whether JSON of this schema is also Python: true, false and null are not."""
    if not isinstance(schema, dict) or not NARROWING.issuperset(schema):
        return False
    match schema.get("type"):
        case "string" | "integer":
            return True
        case "number":
            return "enum" in schema or {"minimum", "maximum"} <= schema.keys()
        case "array" if "enum" not in schema:
            return _same_in_python(schema.get("items"))
        case "object" if schema.get("additionalProperties") is False:
            inner = members(schema)
            return inner is not None and all(_same_in_python(one.schema) for one in inner)
    return False
