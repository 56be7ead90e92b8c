"""Kimi K2: a section of calls, each with its name and its number in a header."""

from __future__ import annotations

import re
from typing import Final

from lmx.worker.formats.family import (
    CallForm,
    CallGrammar,
    Family,
    Rules,
    SpecialTokens,
    Tool,
)
from lmx.worker.formats.forms.json import json_arguments, read_arguments
from lmx.worker.formats.forms.section import unread
from lmx.worker.templates.history import HistoryForm
from lmx.worker.text.feed import PartSink, Steps, TextFeed

_START: Final = "<|tool_calls_section_begin|>"
_END: Final = "<|tool_calls_section_end|>"
_CALL: Final = "<|tool_call_begin|>"
_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_CALL_END: Final = "<|tool_call_end|>"
# Models write it now and then.
_SINGULAR: Final = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")
_HEADER: Final = re.compile(r"(?:functions\.)?(\S+?)(?::\d+)?")
_ID: Final = re.compile(r"functions\..+:\d+")


def _read(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read a section of calls, ``functions.name:0`` being the header of the first."""
    begun = sink.calls
    while True:
        yield from feed.skip()
        marker = yield from feed.starts((_CALL, _END, _SINGULAR[1]))
        if marker != _CALL:
            return sink.calls > begun
        header: list[str] = []
        marker = yield from feed.until((_ARGUMENTS, _CALL_END), header.append)
        match = _HEADER.fullmatch("".join(header).strip())
        name = match.group(1) if match else ""
        yield from feed.skip()
        if marker == _ARGUMENTS and (yield from feed.starts((_CALL_END,))):
            marker = _CALL_END
        if marker == _CALL_END:
            if name not in sink.names:
                return False
            sink.begin_call(name)
            sink.arguments("{}")
        else:
            if not (yield from read_arguments(feed, sink, name, _CALL_END)):
                return False
            yield from feed.skip()
            yield from feed.starts((_CALL_END,))
        feed.mark()


def _call(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    header = special.lark(f"{_CALL}functions.{tool.name}:")
    opening, closing = special.lark(_ARGUMENTS), special.lark(_CALL_END)
    return f"{header} /[0-9]{{1,3}}/ {opening} {json_arguments(tool)} {closing}"


def _numbered(call_id: str, name: str, number: int) -> str:
    """Return the id in Kimi's form: its template reads the names of tools from the ids."""
    return call_id if _ID.fullmatch(call_id) else f"functions.{name}:{number}"


KIMI_K2: Final = Family(
    name="kimi_k2",
    calls=(
        CallForm(_START, _END, _read, (_CALL, _ARGUMENTS, _CALL_END)),
        CallForm(*_SINGULAR, _read),
        CallForm(_CALL, "", unread(_CALL, _read)),
    ),
    grammar=CallGrammar(_call, open=_START, close=_END),
    history=HistoryForm(call_id=_numbered),
)
