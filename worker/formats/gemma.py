"""Gemma 4's tool calls: ``call:name{key:value,...}``, strings between marks of their own.

Read here, not by mlx-vlm's parser: that one ends a call at the first brace that seems to match,
also inside a string, and gives out what came before as if it were all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from lmx.worker.formats.json import spill
from lmx.worker.text.feed import PartSink, Steps, TextFeed
from lmx.worker.text.json_scan import read_json

GEMMA_END: Final = "<tool_call|>"
GEMMA_QUOTE: Final = '<|"|>'

# The name begins with no space: else a long row of them took time that grows with its square.
_NAME: Final = re.compile(r"(?:call)?:?\s*(\S.*)")
_DEEPEST: Final = 100

_Give = Callable[[str], Any]


def read_gemma_call(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read one call up to and including its end mark. Arguments are given out as JSON, as they
    come. The feed must be marked. Returns False when it is no call of a known tool."""
    pieces: list[str] = []
    brace = yield from feed.until(("{", GEMMA_END), pieces.append)
    match = _NAME.fullmatch("".join(pieces).strip())
    if brace != "{" or match is None or match.group(1) not in sink.names:
        return False
    feed.untake(1)
    feed.unmark()
    sink.begin_call(match.group(1))
    if not (yield from _read_value(feed, sink.arguments, 0)):
        yield from spill(feed, sink, GEMMA_END)
        return True
    yield from feed.skip()
    yield from feed.starts((GEMMA_END,))
    return True


def _read_value(feed: TextFeed, give: _Give, depth: int) -> Steps[bool]:
    """Give the value that comes next; return whether it is whole and right."""
    yield from feed.skip()
    char = yield from feed.char()
    if char in ("{", "["):
        return depth < _DEEPEST and (yield from _read_members(feed, give, depth))
    if char == '"':
        return (yield from read_json(feed, give))
    if (yield from feed.starts((GEMMA_QUOTE,))):
        give('"')
        if not (yield from feed.until((GEMMA_QUOTE,), lambda text: give(_escaped(text)), False)):
            return False
        give('"')
        return True
    word: list[str] = []
    mark = yield from feed.until((",", "}", "]", GEMMA_END), word.append)
    feed.untake(len(mark or ""))
    if mark is None:
        return False
    text = "".join(word).strip()
    if not text or mark == GEMMA_END:
        give(text)
        return False
    give(_literal(text))
    return True


def _read_members(feed: TextFeed, give: _Give, depth: int) -> Steps[bool]:
    """Give an object or an array, whose first character is next."""
    opening = feed.take(1)
    closing = "}" if opening == "{" else "]"
    give(opening)
    separator = ""
    while True:
        yield from feed.skip(", \t\r\n")
        char = yield from feed.char()
        if char in ("", closing):
            give(feed.take(len(char)))
            return bool(char)
        give(separator)
        separator = ", "
        if opening == "{":
            key: list[str] = []
            mark = yield from feed.until((":", "{", "}", GEMMA_END), key.append)
            if mark != ":":
                if mark:
                    give("".join(key))
                    feed.untake(len(mark))
                return False
            name = "".join(key).strip().removeprefix(GEMMA_QUOTE).removesuffix(GEMMA_QUOTE)
            give(f'"{_escaped(name)}": ')
        if not (yield from _read_value(feed, give, depth + 1)):
            return False


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _literal(word: str) -> str:
    """Return a number, true, false or null as it is, any other word as a string."""
    try:
        json.loads(word, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return f'"{_escaped(word)}"'
    return word


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
