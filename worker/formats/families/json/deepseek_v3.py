"""DeepSeek V3, R1-0528 and V3.1: a section of calls, in which the older ones fence the arguments.
Source: their chat templates. V3.2 writes tags.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_call
from lmx.worker.formats.forms.section import SectionForm, read_section_calls, unread

_START: Final = "<｜tool▁calls▁begin｜>"
_FORM: Final = SectionForm(
    end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    separator="<｜tool▁sep｜>",
)
# Either model is read with the form of the other too.
_CALLS: Final = CallForm(
    _START,
    _FORM.end,
    partial(read_section_calls, form=_FORM),
    (_FORM.call, _FORM.separator, _FORM.call_end),
)
_BARE: Final = CallForm(_FORM.call, "", unread(_FORM.call, _CALLS.read))

DEEPSEEK_V3: Final = Family(
    name="deepseek_v3",
    calls=(_CALLS, _BARE),
    grammar=CallGrammar(
        json_call(
            f"{_FORM.call}function{_FORM.separator}$name\n```json\n", f"\n```{_FORM.call_end}"
        ),
        open=_START,
        between="\n",
        close=_FORM.end,
    ),
    read_bare=read_bare_calls,
    template_marks=((_START, "```json"),),
)

DEEPSEEK_V31: Final = Family(
    name="deepseek_v31",
    calls=(_CALLS, _BARE),
    grammar=CallGrammar(
        json_call(f"{_FORM.call}$name{_FORM.separator}", _FORM.call_end),
        open=_START,
        close=_FORM.end,
    ),
    read_bare=read_bare_calls,
    template_marks=((_START,),),
)
