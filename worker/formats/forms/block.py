"""Tool calls that mlx-vlm's own parsers read. Each is passed to them when its end marker has
come."""

from __future__ import annotations

from typing import Any

from lmx.worker.formats.forms.json import json_text, object_of
from lmx.worker.formats.forms.python import read_code
from lmx.worker.formats.registry import parse_call
from lmx.worker.text.feed import PartSink, Steps, TextFeed


def read_block(
    feed: TextFeed, sink: PartSink, parser: str, end: str, prefix: str = "", *, python: bool = False
) -> Steps[bool]:
    """Read up to and including ``end``, and parse the text with ``prefix`` before it. ``python``:
    the text is code, whose strings may contain ``end``.

    Returns False if it is no call, or a call of an unknown tool. A block without its end is no
    call: some of the parsers would take the cut text for the whole.
    """
    text = yield from (read_code(feed, end) if python else _read_plain(feed, end))
    if text is None:
        return False
    try:
        parsed = parse_call(parser, prefix + text.strip(), sink.tools)
        calls = [_checked(call) for call in parsed]
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    if not calls or any(name not in sink.names for name, _ in calls):
        return False
    for name, arguments in calls:
        sink.begin_call(name)
        sink.arguments(arguments)
    return True


def _read_plain(feed: TextFeed, end: str) -> Steps[str | None]:
    text: list[str] = []
    found = yield from feed.until((end,), text.append)
    return "".join(text) if found else None


def _checked(call: Any) -> tuple[str, str]:
    arguments = call["arguments"]
    if isinstance(arguments, str):
        arguments = object_of(arguments)
    if not isinstance(arguments, dict):
        raise TypeError("arguments are no object")
    return call["name"].strip(), json_text(arguments)
