"""Step 3: tags in a section of calls. Source: the parsers that servers have for it."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<｜tool_calls_begin｜>"
_CALL: Final = "<｜tool_call_begin｜>"
_SEPARATOR: Final = "<｜tool_sep｜>"
_CALL_END: Final = "<｜tool_call_end｜>"
_FORM: Final = XmlForm(
    end="<｜tool_calls_end｜>",
    function=f"{_CALL}function{_SEPARATOR}<steptml:invoke name=",
    name_end=">",
    parameter="<steptml:parameter name=",
    key_end=(">",),
    parameter_end="</steptml:parameter>",
    function_end=f"</steptml:invoke>{_CALL_END}",
    strip=True,
)
_ARGUMENT: Final = TagForm(
    open='<steptml:parameter name="{}">',
    close="</steptml:parameter>",
    closing="</steptml:parameter>",
    strips=True,
    any_json=False,
    following=_FORM.tags,
)

STEP3: Final = Family(
    name="step3",
    calls=xml_calls(_START, _FORM, (_CALL, _SEPARATOR, _CALL_END)),
    grammar=CallGrammar(
        tagged_call(f'{_FORM.function}"{{}}">', _ARGUMENT, _FORM.function_end),
        open=_START,
        close=_FORM.end,
    ),
    read_bare=read_bare_calls,
    template_marks=(("steptml",),),
)
