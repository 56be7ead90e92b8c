"""Qwen3-Coder and Qwen3.5: ``<function=name><parameter=key>value</parameter></function>``."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<tool_call>"
QWEN3_CODER_FORM: Final = XmlForm(
    end="</tool_call>",
    function="<function=",
    name_end=">",
    parameter="<parameter=",
    key_end=(">",),
    parameter_end="</parameter>",
    function_end="</function>",
    strip=False,
)
QWEN3_CODER_ARGUMENT: Final = TagForm(
    open="<parameter={}>\n",
    close="\n</parameter>\n",
    closing="</parameter>",
    strips=False,
    any_json=False,
    following=QWEN3_CODER_FORM.tags,
)

QWEN3_CODER: Final = Family(
    name="qwen3_coder",
    calls=xml_calls(_START, QWEN3_CODER_FORM),
    grammar=CallGrammar(
        tagged_call(
            f"{_START}\n<function={{}}>\n",
            QWEN3_CODER_ARGUMENT,
            f"</function>\n{QWEN3_CODER_FORM.end}",
        ),
        between="\n",
    ),
)
