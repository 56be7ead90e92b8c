"""DeepSeek V3.2 and V4: tags that say whether a value is text or JSON ("DSML"). Source: the
encoding that DeepSeek publishes with V3.2, which has no chat template of its own, and V4's
template.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<｜DSML｜function_calls>"
_START_V4: Final = "<｜DSML｜tool_calls>"
_FORM: Final = XmlForm(
    end="</｜DSML｜function_calls>",
    function="<｜DSML｜invoke name=",
    name_end=">",
    parameter="<｜DSML｜parameter name=",
    key_end=(">",),
    parameter_end="</｜DSML｜parameter>",
    function_end="</｜DSML｜invoke>",
    strip=False,
    typed=True,
)
_ARGUMENT: Final = TagForm(
    open='<｜DSML｜parameter name="{}" string="true">',
    open_json='<｜DSML｜parameter name="{}" string="false">',
    close="</｜DSML｜parameter>\n",
    closing="</｜DSML｜parameter>",
    strips=False,
    any_json=True,
    following=_FORM.tags,
)

_FORM_V4: Final = replace(_FORM, end="</｜DSML｜tool_calls>")
_TOKENS: Final = ("｜DSML｜",)
_CALL: Final = tagged_call('<｜DSML｜invoke name="{}">\n', _ARGUMENT, "</｜DSML｜invoke>\n")
# The version whose mark of a section it is comes first; each reads the other's.
_V32: Final = xml_calls(_START, _FORM, _TOKENS)
_V4: Final = xml_calls(_START_V4, _FORM_V4, _TOKENS)

DEEPSEEK_V32: Final = Family(
    name="deepseek_v32",
    calls=(*_V32, _V4[0]),
    grammar=CallGrammar(_CALL, open=f"{_START}\n", close=_FORM.end),
    read_bare=read_bare_calls,
    template_marks=(("｜DSML｜",),),
)

DEEPSEEK_V4: Final = Family(
    name="deepseek_v4",
    calls=(*_V4, _V32[0]),
    grammar=CallGrammar(_CALL, open=f"{_START_V4}\n", close=_FORM_V4.end),
    read_bare=read_bare_calls,
    template_marks=(("｜DSML｜", "tool_calls>"),),
)
