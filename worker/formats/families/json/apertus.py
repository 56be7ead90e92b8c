"""Apertus: an array of objects, each with the function's name as its only key. Source: its chat
template, and the parsers that servers have for it.
"""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_call, read_arguments, read_key
from lmx.worker.text.feed import PartSink, Steps, TextFeed, discard

_START: Final = "<|tools_prefix|>"
_END: Final = "<|tools_suffix|>"


def _read(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    begun = sink.calls
    if (yield from feed.skip(" \t\r\n`")).endswith("```"):
        yield from feed.until(("\n",), discard)
        yield from feed.skip()
    yield from feed.starts(("[",))
    while True:
        yield from feed.skip(", \t\r\n]}`")
        if (yield from feed.starts((_END,))):
            return sink.calls > begun
        if not (yield from feed.starts(("{",))):
            return False
        yield from feed.skip()
        name = yield from read_key(feed)
        if name is None or not (yield from read_arguments(feed, sink, name, _END)):
            return False
        yield from feed.skip()
        yield from feed.starts(("}",))
        feed.mark()


APERTUS: Final = Family(
    name="apertus",
    calls=(CallForm(_START, _END, _read),),
    grammar=CallGrammar(
        json_call("{$json_name: ", "}"), open=f"{_START}[", between=", ", close=f"]{_END}"
    ),
    read_bare=read_bare_calls,
    template_marks=((_START,),),
)
