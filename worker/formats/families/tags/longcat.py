"""LongCat: GLM's form with tags of its own."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<longcat_tool_call>"
_FORM: Final = XmlForm(
    end="</longcat_tool_call>",
    function="",
    name_end="",
    parameter="<longcat_arg_key>",
    key_end=("</longcat_arg_key>", "<longcat_arg_value>"),
    parameter_end="</longcat_arg_value>",
    function_end="",
    strip=True,
)
_TOKENS: Final = (
    "<longcat_arg_key>",
    "</longcat_arg_key>",
    "<longcat_arg_value>",
    "</longcat_arg_value>",
)
_ARGUMENT: Final = TagForm(
    open="<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>",
    close="</longcat_arg_value>\n",
    closing="</longcat_arg_value>",
    strips=True,
    any_json=True,
    following=_FORM.tags,
)

LONGCAT: Final = Family(
    name="longcat",
    calls=xml_calls(_START, _FORM, _TOKENS),
    grammar=CallGrammar(tagged_call(f"{_START}{{}}\n", _ARGUMENT, _FORM.end), between="\n"),
)
