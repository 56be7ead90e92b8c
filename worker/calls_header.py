"""Tool calls that are a header with a name, and a JSON object: Mistral's and Kimi's."""

from __future__ import annotations

import re
from typing import Final

from lmx.worker.calls_json import read_arguments, read_json_calls
from lmx.worker.parts import PartSink
from lmx.worker.text_feed import Steps, TextFeed, discard

_ARGS: Final = "[ARGS]"
_CALL_ID: Final = "[CALL_ID]"

_KIMI_BEGIN: Final = "<|tool_call_begin|>"
_KIMI_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_KIMI_END: Final = "<|tool_call_end|>"
_KIMI_SECTION_END: Final = "<|tool_calls_section_end|>"
_KIMI_HEADER: Final = re.compile(r"(?:functions\.)?(\S+?)(?::\d+)?")


def read_mistral_calls(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read what comes after ``[TOOL_CALLS]``: an array of calls as JSON (the older models), or
    one call as ``name[CALL_ID]id[ARGS]{...}``, the id or both markers left out."""
    yield from feed.skip()
    if (yield from feed.char()) in ("[", "{"):
        return (yield from read_json_calls(feed, sink, ""))
    name: list[str] = []
    marker = yield from feed.until((_ARGS, _CALL_ID, "{", "\n"), name.append)
    if marker == _CALL_ID:
        marker = yield from feed.until((_ARGS, "{", "\n"), discard)
    if marker == "{":
        feed.untake(1)
    return (yield from read_arguments(feed, sink, "".join(name).strip(), ""))


def read_kimi_calls(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read a section of calls, ``functions.name:0`` being the header of the first."""
    begun = sink.calls
    while True:
        yield from feed.skip()
        marker = yield from feed.starts((_KIMI_BEGIN, _KIMI_SECTION_END))
        if marker != _KIMI_BEGIN:
            return sink.calls > begun
        header: list[str] = []
        marker = yield from feed.until((_KIMI_ARGUMENTS, _KIMI_END), header.append)
        match = _KIMI_HEADER.fullmatch("".join(header).strip())
        name = match.group(1) if match else ""
        yield from feed.skip()
        if marker == _KIMI_ARGUMENTS and (yield from feed.starts((_KIMI_END,))):
            marker = _KIMI_END
        if marker == _KIMI_END:
            if name not in sink.names:
                return False
            sink.begin_call(name)
            sink.arguments("{}")
        else:
            if not (yield from read_arguments(feed, sink, name, _KIMI_END)):
                return False
            yield from feed.skip()
            yield from feed.starts((_KIMI_END,))
        feed.mark()
