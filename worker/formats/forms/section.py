"""Tool calls in a section: each call is between markers, with its name before a JSON object, which
may be fenced with backticks."""

from typing import NamedTuple

from lmx.worker.formats.family import Reader
from lmx.worker.formats.forms.json import FENCE, read_arguments
from lmx.worker.text.feed import PartSink, Steps, TextFeed


class SectionForm(NamedTuple):
    """The markers of a family."""

    end: str
    """The marker that ends the section."""
    call: str
    """The marker that begins a call."""
    call_end: str
    """The marker that ends a call."""
    separator: str = ""
    """The marker after the name, or after the word "function" before the name. If it is "", a line
    break follows the name."""


def read_section_calls(feed: TextFeed, sink: PartSink, form: SectionForm) -> Steps[bool]:
    """Read calls up to and including the section's end. See :data:`Reader`."""
    begun = sink.calls
    while True:
        yield from feed.skip()
        if (yield from feed.starts((form.call, form.end))) != form.call:
            return sink.calls > begun
        name = yield from _read_name(feed, form)
        if not (yield from read_arguments(feed, sink, name, form.call_end)):
            return False
        yield from feed.skip()
        yield from feed.starts((form.call_end,))
        feed.mark()


def unread(marker: str, read: Reader) -> Reader:
    """Return a reader of calls without the section around them: the first one's marker was read."""

    def read_on(feed: TextFeed, sink: PartSink) -> Steps[bool]:
        feed.unread(len(marker))
        return (yield from read(feed, sink))

    return read_on


def _read_name(feed: TextFeed, form: SectionForm) -> Steps[str]:
    name: list[str] = []
    if form.separator:
        found = yield from feed.until((form.separator, form.call_end), name.append)
        yield from feed.skip()
        if found == form.call_end or (yield from feed.char()) == "{":
            return "".join(name).strip()
        name.clear()
    marker = yield from feed.until(("\n", "{", FENCE, form.call_end), name.append)
    if marker in ("{", FENCE):
        feed.unread(len(marker or ""))
    return "".join(name).strip()
