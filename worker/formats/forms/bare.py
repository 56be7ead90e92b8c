"""Tool calls without any marker at the beginning of an answer: JSON, or Python as Llama 3.2 and 4
and Gemma 3 write it. Only text that names a known tool is a call."""

from __future__ import annotations

from lmx.worker.formats.forms.json import read_bare_json_calls
from lmx.worker.formats.forms.python import read_bare_python_calls
from lmx.worker.text.feed import PartSink, Steps, TextFeed


def read_bare_calls(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read calls in either form. The feed must be marked. Returns False if there is no call."""
    begun = sink.calls
    if (yield from read_bare_json_calls(feed, sink)):
        return True
    if sink.calls > begun:
        return False
    feed.rewind()
    feed.mark()
    return (yield from read_bare_python_calls(feed, sink))
