"""Qwen3-Coder and Qwen3.5: ``<function=name><parameter=key>value</parameter></function>``."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, read_xml_calls, tagged_call

_START: Final = "<tool_call>"
_FORM: Final = XmlForm(
    parser="qwen3_coder",
    end="</tool_call>",
    function="<function=",
    name_end=">",
    parameter="<parameter=",
    key_end=(">",),
    parameter_end="</parameter>",
    function_end="</function>",
    strip=False,
)
_ARGUMENT: Final = TagForm(
    open="<parameter={}>\n",
    close="\n</parameter>\n",
    closing="</parameter>",
    strips=False,
    any_json=False,
)

QWEN3_CODER: Final = Family(
    name="qwen3_coder",
    calls=(CallForm(_START, _FORM.end, partial(read_xml_calls, form=_FORM)),),
    grammar=CallGrammar(
        tagged_call(f"{_START}\n<function={{}}>\n", _ARGUMENT, f"</function>\n{_FORM.end}"),
        between="\n",
    ),
)
