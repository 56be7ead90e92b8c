"""Hunyuan's dense models: a section of calls whose arguments are fenced. A13B writes an array, as
Jamba does. Source: their chat templates.
"""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_call, read_json_calls
from lmx.worker.formats.forms.section import SectionForm, read_section_calls
from lmx.worker.text.feed import PartSink, Steps, TextFeed

_START: Final = "<tool_calls>"
_FORM: Final = SectionForm(end="</tool_calls>", call="<tool_call>", call_end="</tool_call>")


def _read(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    yield from feed.skip()
    if (yield from feed.char()) in ("[", "{"):
        return (yield from read_json_calls(feed, sink, _FORM.end))
    return (yield from read_section_calls(feed, sink, _FORM))


HUNYUAN: Final = Family(
    name="hunyuan",
    calls=(CallForm(_START, _FORM.end, _read, (_FORM.call, _FORM.call_end)),),
    grammar=CallGrammar(
        json_call(f"{_FORM.call}$name\n```json\n", f"\n```\n{_FORM.call_end}\n"),
        open=f"{_START}\n",
        close=_FORM.end,
    ),
    read_bare=read_bare_calls,
    template_marks=((_START, _FORM.call, "```json"),),
)
