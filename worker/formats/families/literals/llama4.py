"""Llama 4: a list of Python calls, between two tokens or bare; JSON is read too, as with Llama 3.
Source: Meta's prompt format of Llama 4, and its chat template.
"""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import read_json_calls
from lmx.worker.formats.forms.python import python_call, read_python_calls
from lmx.worker.text.feed import PartSink, Steps, TextFeed

_START: Final = "<|python_start|>"
_END: Final = "<|python_end|>"


def _read(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    yield from feed.skip()
    if (yield from feed.char()) == "{":
        return (yield from read_json_calls(feed, sink, _END))
    return (yield from read_python_calls(feed, sink, _END))


LLAMA4: Final = Family(
    name="llama4",
    calls=(CallForm(_START, _END, _read),),
    grammar=CallGrammar(python_call, open=f"{_START}[", between=", ", close=f"]{_END}"),
    read_bare=read_bare_calls,
    template_marks=((_START,),),
)
