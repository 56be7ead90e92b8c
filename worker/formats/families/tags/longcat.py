"""LongCat: GLM's form with tags of its own."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, read_xml_calls, tagged_call

_START: Final = "<longcat_tool_call>"
_FORM: Final = XmlForm(
    parser="longcat",
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
)

LONGCAT: Final = Family(
    name="longcat",
    calls=(CallForm(_START, _FORM.end, partial(read_xml_calls, form=_FORM), _TOKENS),),
    grammar=CallGrammar(tagged_call(f"{_START}{{}}\n", _ARGUMENT, _FORM.end), between="\n"),
)
