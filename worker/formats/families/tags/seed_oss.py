"""Seed-OSS: Qwen3-Coder's form with a mark of its own, and values without line breaks around them.
Source: its chat template.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lmx.worker.formats.families.tags.qwen3_coder import QWEN3_CODER_ARGUMENT, QWEN3_CODER_FORM
from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.tags import tagged_call, xml_calls

_START: Final = "<seed:tool_call>"
_FORM: Final = replace(QWEN3_CODER_FORM, end="</seed:tool_call>")
_ARGUMENT: Final = replace(
    QWEN3_CODER_ARGUMENT, open="<parameter={}>", close="</parameter>\n", following=_FORM.tags
)

SEED_OSS: Final = Family(
    name="seed_oss",
    calls=xml_calls(_START, _FORM),
    grammar=CallGrammar(
        tagged_call(f"{_START}\n<function={{}}>\n", _ARGUMENT, f"</function>\n{_FORM.end}"),
        between="\n",
    ),
    read_bare=read_bare_calls,
    template_marks=((_START,),),
)
