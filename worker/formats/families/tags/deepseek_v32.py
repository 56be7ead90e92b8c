"""DeepSeek V3.2: tags that say whether a value is text or JSON ("DSML"). Source: the encoding that
DeepSeek publishes with the model, which has no chat template of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.tags import XmlForm, read_xml_calls, tagged_call

_START: Final = "<｜DSML｜function_calls>"
_FORM: Final = XmlForm(
    parser="",
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
)

DEEPSEEK_V32: Final = Family(
    name="deepseek_v32",
    calls=(CallForm(_START, _FORM.end, partial(read_xml_calls, form=_FORM), ("｜DSML｜",)),),
    grammar=CallGrammar(
        tagged_call('<｜DSML｜invoke name="{}">\n', _ARGUMENT, "</｜DSML｜invoke>\n"),
        open=f"{_START}\n",
        close=_FORM.end,
    ),
    read_bare=read_bare_calls,
    template_marks=(("｜DSML｜",),),
)
