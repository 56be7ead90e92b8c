"""Muse ("ATEM"): ``<atem:invoke>`` with a tag for each argument."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<atem:function_calls>"
_FORM: Final = XmlForm(
    end="</atem:function_calls>",
    function="<atem:invoke name=",
    name_end=">",
    parameter="<atem:parameter name=",
    key_end=(">",),
    parameter_end="</atem:parameter>",
    function_end="</atem:invoke>",
    strip=False,
)
_ARGUMENT: Final = TagForm(
    open='<atem:parameter name="{}">',
    close="</atem:parameter>",
    closing="</atem:parameter>",
    strips=False,
    any_json=True,
    following=_FORM.tags,
)

ATEM: Final = Family(
    name="atem",
    calls=xml_calls(_START, _FORM),
    grammar=CallGrammar(
        tagged_call('<atem:invoke name="{}">', _ARGUMENT, "</atem:invoke>"),
        open=_START,
        close=_FORM.end,
    ),
)
