"""GLM 4.5 and later: a tag for each key and for each value."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import CallGrammar, Family
from lmx.worker.formats.forms.arguments import TagForm
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls

_START: Final = "<tool_call>"
_FORM: Final = XmlForm(
    end="</tool_call>",
    function="",
    name_end="",
    parameter="<arg_key>",
    key_end=("</arg_key>", "<arg_value>"),
    parameter_end="</arg_value>",
    function_end="",
    strip=True,
)
_TOKENS: Final = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_ARGUMENT: Final = TagForm(
    open="<arg_key>{}</arg_key>\n<arg_value>",
    close="</arg_value>\n",
    closing="</arg_value>",
    strips=True,
    any_json=True,
    following=_FORM.tags,
)

GLM47: Final = Family(
    name="glm47",
    calls=xml_calls(_START, _FORM, _TOKENS),
    grammar=CallGrammar(tagged_call(f"{_START}{{}}\n", _ARGUMENT, _FORM.end), between="\n"),
)
