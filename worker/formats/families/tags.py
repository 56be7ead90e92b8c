"""Families with a tag around each argument."""

from dataclasses import replace
from functools import partial
from typing import Final

from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.family import CallForm, CallGrammar, Family, MessageForm
from lmx.worker.formats.forms.library import read_block
from lmx.worker.formats.forms.python import read_bare_calls
from lmx.worker.formats.forms.tags import XmlForm, tagged_call, xml_calls


def _named_tags(
    function: str, parameter: str, end: str, *, framed: bool, typed: bool = False
) -> XmlForm:
    """Return the form in which functions and parameters are tags with a name: ``<invoke name=``."""
    return XmlForm(
        end=end,
        function=f"<{function} name=",
        name_end=">",
        parameter=f"<{parameter} name=",
        key_end=(">",),
        parameter_end=f"</{parameter}>",
        function_end=f"</{function}>",
        framed=framed,
        typed=typed,
    )


# Muse ("ATEM"): ``<atem:invoke>`` with a tag for each argument, in a message to the tool.
_ATEM_FORM: Final = _named_tags(
    "atem:invoke", "atem:parameter", "</atem:function_calls>", framed=True
)
MUSE_MESSAGES: Final = MessageForm(
    start="<|start|>",
    role="assistant",
    recipient="to=",
    body="<|message|>",
    ends=("<|eom|>", "<|eot|>"),
    user="user",
    thinking=ReasoningMarkers("to=self<|message|>", "<|eom|>"),
)
_ATEM: Final = Family(
    name="atem",
    messages=MUSE_MESSAGES,
    calls=xml_calls("<atem:function_calls>", _ATEM_FORM),
    grammar=CallGrammar(
        _ATEM_FORM.call('"{}">', '"{}">', any_json=True),
        open="<atem:function_calls>",
        close=_ATEM_FORM.end,
    ),
)

# DeepSeek V3.2 and V4: tags that show whether a value is text or JSON ("DSML"). Each reads the
# other's marker of a section too. Source: the encoding that DeepSeek publishes with V3.2, which has
# no chat template of its own, and V4's template.
_V32_FORM: Final = _named_tags(
    "｜DSML｜invoke", "｜DSML｜parameter", "</｜DSML｜function_calls>", framed=False, typed=True
)
_V4_FORM: Final = replace(_V32_FORM, end="</｜DSML｜tool_calls>")
_V32_CALLS: Final = xml_calls("<｜DSML｜function_calls>", _V32_FORM, ("｜DSML｜",))
_V4_CALLS: Final = xml_calls("<｜DSML｜tool_calls>", _V4_FORM, ("｜DSML｜",))
_DSML_CALL: Final = _V32_FORM.call(
    '"{}">\n', '"{}" string="true">', "\n", any_json=True, open_json='"{}" string="false">'
)

_DEEPSEEK_V32: Final = Family(
    name="deepseek_v32",
    calls=(*_V32_CALLS, _V4_CALLS[0]),
    grammar=CallGrammar(_DSML_CALL, open="<｜DSML｜function_calls>\n", close=_V32_FORM.end),
    read_bare=read_bare_calls,
    template_markers=(("｜DSML｜",),),
)

_DEEPSEEK_V4: Final = Family(
    name="deepseek_v4",
    calls=(*_V4_CALLS, _V32_CALLS[0]),
    grammar=CallGrammar(_DSML_CALL, open="<｜DSML｜tool_calls>\n", close=_V4_FORM.end),
    read_bare=read_bare_calls,
    template_markers=(("｜DSML｜", "tool_calls>"),),
)

# GLM 4.5 and later, and LongCat with tags of its own: a tag for each key and for each value.


def _keys_and_values(name: str, prefix: str) -> Family:
    start, end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    key, key_end = f"<{prefix}arg_key>", f"</{prefix}arg_key>"
    value, value_end = f"<{prefix}arg_value>", f"</{prefix}arg_value>"
    form = XmlForm(
        end=end,
        function="",
        name_end="",
        parameter=key,
        key_end=(key_end, value),
        parameter_end=value_end,
        function_end="",
        framed=True,
    )
    argument = form.argument(f"{key}{{}}{key_end}\n{value}", f"{value_end}\n", any_json=True)
    return Family(
        name=name,
        calls=xml_calls(start, form, (key, key_end, value, value_end)),
        grammar=CallGrammar(tagged_call(f"{start}{{}}\n", argument, end), between="\n"),
    )


_GLM47: Final = _keys_and_values("glm47", "")
_LONGCAT: Final = _keys_and_values("longcat", "longcat_")

# MiniCPM 5: ``<function name=...><param name=...>``, text in it escaped as in XML.
_MINICPM5: Final = Family(
    name="minicpm5",
    calls=(
        CallForm(
            "<function name=",
            "</function>",
            partial(read_block, parser="minicpm5", end="</function>", prefix="name="),
            ("<param", "</param>"),
        ),
    ),
)

# MiniMax M2: ``<invoke name="..."><parameter name="...">``, several calls in one marker.
_MINIMAX_M2_FORM: Final = _named_tags("invoke", "parameter", "</minimax:tool_call>", framed=True)
_MINIMAX_M2: Final = Family(
    name="minimax_m2",
    calls=xml_calls("<minimax:tool_call>", _MINIMAX_M2_FORM),
    grammar=CallGrammar(
        _MINIMAX_M2_FORM.call('"{}">\n', '"{}">', "\n"),
        open="<minimax:tool_call>\n",
        close=_MINIMAX_M2_FORM.end,
    ),
)

# MiniMax M3: a tag of its own for each argument and each member, at any depth.
_MINIMAX_M3_END: Final = "]<]minimax[>[</tool_call>"
_MINIMAX_M3: Final = Family(
    name="minimax_m3",
    calls=(
        CallForm(
            "]<]minimax[>[<tool_call>",
            _MINIMAX_M3_END,
            partial(read_block, parser="minimax_m3", end=_MINIMAX_M3_END),
        ),
    ),
)

# Qwen3-Coder and Qwen3.5: ``<function=name><parameter=key>value</parameter></function>``. Seed-OSS:
# the same with a marker of its own, and values without line breaks around them. Source: its chat
# template.
_QWEN_FORM: Final = XmlForm(
    end="</tool_call>",
    function="<function=",
    name_end=">",
    parameter="<parameter=",
    key_end=(">",),
    parameter_end="</parameter>",
    function_end="</function>",
    framed=False,
)
QWEN3_CODER: Final = Family(
    name="qwen3_coder",
    calls=xml_calls("<tool_call>", _QWEN_FORM),
    grammar=CallGrammar(
        tagged_call(
            "<tool_call>\n<function={}>\n",
            _QWEN_FORM.argument("<parameter={}>\n", "\n</parameter>\n"),
            "</function>\n</tool_call>",
        ),
        between="\n",
    ),
)

_SEED_FORM: Final = replace(_QWEN_FORM, end="</seed:tool_call>")
_SEED_OSS: Final = Family(
    name="seed_oss",
    calls=xml_calls("<seed:tool_call>", _SEED_FORM),
    grammar=CallGrammar(
        tagged_call(
            "<seed:tool_call>\n<function={}>\n",
            _SEED_FORM.argument("<parameter={}>", "</parameter>\n"),
            "</function>\n</seed:tool_call>",
        ),
        between="\n",
    ),
    read_bare=read_bare_calls,
    template_markers=(("<seed:tool_call>",),),
)

# Step 3: tags in a section of calls. Source: the parsers that servers have for it.
_STEP_FORM: Final = replace(
    _named_tags("steptml:invoke", "steptml:parameter", "<｜tool_calls_end｜>", framed=True),
    function="<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
    function_end="</steptml:invoke><｜tool_call_end｜>",
)
_STEP3: Final = Family(
    name="step3",
    calls=xml_calls(
        "<｜tool_calls_begin｜>",
        _STEP_FORM,
        ("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
    ),
    grammar=CallGrammar(
        _STEP_FORM.call('"{}">', '"{}">'), open="<｜tool_calls_begin｜>", close=_STEP_FORM.end
    ),
    read_bare=read_bare_calls,
    template_markers=(("steptml",),),
)

TAG_FAMILIES: Final = (
    _ATEM,
    _DEEPSEEK_V4,
    _DEEPSEEK_V32,
    _GLM47,
    _LONGCAT,
    _MINICPM5,
    _MINIMAX_M2,
    _MINIMAX_M3,
    QWEN3_CODER,
    _SEED_OSS,
    _STEP3,
)
"""Of several that a chat template shows, the first counts."""
