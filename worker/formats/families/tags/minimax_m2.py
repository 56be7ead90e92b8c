"""MiniMax M2: ``<invoke name="..."><parameter name="...">``, several calls in one mark."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<minimax:tool_call>"
MINIMAX_M2_FORM: Final = XmlForm(
    end="</minimax:tool_call>",
    function="<invoke name=",
    name_end=">",
    parameter="<parameter name=",
    key_end=(">",),
    parameter_end="</parameter>",
    function_end="</invoke>",
    strip=True,
)
_ARGUMENT: Final = TagForm(
    open='<parameter name="{}">',
    close="</parameter>\n",
    closing="</parameter>",
    strips=True,
    any_json=False,
    following=MINIMAX_M2_FORM.tags,
)

MINIMAX_M2: Final = Family(
    name="minimax_m2",
    calls=xml_calls(_START, MINIMAX_M2_FORM),
    grammar=CallGrammar(
        tagged_call('<invoke name="{}">\n', _ARGUMENT, "</invoke>\n"),
        open=f"{_START}\n",
        close=MINIMAX_M2_FORM.end,
    ),
)
