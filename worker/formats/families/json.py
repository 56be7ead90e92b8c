"""Families whose arguments are a JSON object."""

import hashlib
import json
import re
from functools import partial
from typing import Final

from lmx.worker.formats.families.tags import QWEN3_CODER
from lmx.worker.formats.family import (
    CallForm,
    CallGrammar,
    Family,
    Rules,
    SpecialTokens,
    Tool,
    UnmarkedForm,
)
from lmx.worker.formats.forms.json import (
    COMMON_KEYS,
    CallKeys,
    json_arguments,
    json_array,
    json_call,
    json_calls,
    read_arguments,
    read_bare_json_calls,
    read_json_calls,
    read_key,
)
from lmx.worker.formats.forms.python import read_bare_calls
from lmx.worker.formats.forms.section import SectionForm, read_section_calls, unread
from lmx.worker.templates.history import HistoryForm
from lmx.worker.text.feed import PartSink, Steps, TextFeed, discard

# JSON in <tool_call>, as Hermes introduced it: Qwen, EXAONE, SmolLM3 and most others. Grammars
# use this form for every call that a family's own form can't express, and for models whose template
# knows no tools.

JSON_CALLS: Final = CallGrammar(
    json_call('<tool_call>\n{"name": $json_name, "arguments": ', "}\n</tool_call>"), between="\n"
)

JSON_TOOLS: Final = Family(
    name="json_tools",
    calls=(
        json_calls("<tool_call>", "</tool_call>"),
        # Models write the plural now and then.
        json_calls("<tool_calls>", "</tool_calls>"),
    ),
    grammar=JSON_CALLS,
    read_bare=read_bare_calls,
)

# Apertus: an array of objects, each with the function's name as its only key. Source: its chat
# template, and the parsers that servers have for it.


def _read_apertus(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    end = "<|tools_suffix|>"
    begun = sink.calls
    if (yield from feed.skip(" \t\r\n`")).endswith("```"):
        yield from feed.until(("\n",), discard)
        yield from feed.skip()
    yield from feed.starts(("[",))
    while True:
        yield from feed.skip(", \t\r\n]}`")
        if (yield from feed.starts((end,))):
            return sink.calls > begun
        if not (yield from feed.starts(("{",))):
            return False
        yield from feed.skip()
        name = yield from read_key(feed)
        if name is None or not (yield from read_arguments(feed, sink, name, end)):
            return False
        yield from feed.skip()
        yield from feed.starts(("}",))
        feed.mark()


_APERTUS: Final = Family(
    name="apertus",
    calls=(CallForm("<|tools_prefix|>", "<|tools_suffix|>", _read_apertus),),
    grammar=CallGrammar(
        json_call("{$json_name: ", "}"),
        open="<|tools_prefix|>[",
        between=", ",
        close="]<|tools_suffix|>",
    ),
    read_bare=read_bare_calls,
    template_markers=(("<|tools_prefix|>",),),
)

# Cohere's Command models: an array of calls between two tokens.


def _cohere_call(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    opening = special.lark('{"tool_call_id": "')
    middle = special.lark(f'", "tool_name": {json.dumps(tool.name)}, "parameters": ')
    return f'{opening} /[0-9]{{1,3}}/ {middle} {json_arguments(tool)} "}}"'


_COHERE2_MOE: Final = Family(
    name="cohere2_moe",
    calls=(
        json_calls(
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            CallKeys(("tool_name", "name"), COMMON_KEYS.arguments),
        ),
    ),
    grammar=CallGrammar(
        _cohere_call, open="<|START_ACTION|>[\n    ", between=",\n    ", close="\n]<|END_ACTION|>"
    ),
)

# DeepSeek V3, R1-0528 and V3.1: a section of calls, in which the older ones fence the arguments.
# Each is read with the form of the other too. Source: their chat templates. V3.2 writes tags.
_DEEPSEEK_START: Final = "<｜tool▁calls▁begin｜>"
_DEEPSEEK: Final = SectionForm(
    end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    separator="<｜tool▁sep｜>",
)
_DEEPSEEK_SECTION: Final = CallForm(
    _DEEPSEEK_START,
    _DEEPSEEK.end,
    partial(read_section_calls, form=_DEEPSEEK),
    (_DEEPSEEK.call, _DEEPSEEK.separator, _DEEPSEEK.call_end),
)
_DEEPSEEK_CALLS: Final = (
    _DEEPSEEK_SECTION,
    CallForm(_DEEPSEEK.call, "", unread(_DEEPSEEK.call, _DEEPSEEK_SECTION.read)),
)

_DEEPSEEK_V3: Final = Family(
    name="deepseek_v3",
    calls=_DEEPSEEK_CALLS,
    grammar=CallGrammar(
        json_call(
            f"{_DEEPSEEK.call}function{_DEEPSEEK.separator}$name\n```json\n",
            f"\n```{_DEEPSEEK.call_end}",
        ),
        open=_DEEPSEEK_START,
        between="\n",
        close=_DEEPSEEK.end,
    ),
    read_bare=read_bare_calls,
    template_markers=((_DEEPSEEK_START, "```json"),),
)

_DEEPSEEK_V31: Final = Family(
    name="deepseek_v31",
    calls=_DEEPSEEK_CALLS,
    grammar=CallGrammar(
        json_call(f"{_DEEPSEEK.call}$name{_DEEPSEEK.separator}", _DEEPSEEK.call_end),
        open=_DEEPSEEK_START,
        close=_DEEPSEEK.end,
    ),
    read_bare=read_bare_calls,
    template_markers=((_DEEPSEEK_START,),),
)

# GigaChat 3: a message of the role ``function call`` with one call. Source: its chat template.
_GIGACHAT: Final = Family(
    name="gigachat",
    calls=(json_calls("function call<|role_sep|>", ""),),
    grammar=CallGrammar(
        json_call('function call<|role_sep|>\n{"name": $json_name, "arguments": ', "}"),
        several=False,
    ),
    read_bare=read_bare_calls,
    template_markers=(("function call", "<|role_sep|>"),),
)

# GLM-4-9B and GLM-4-0414: an answer begins with the name on a line, and a JSON object. Source:
# their chat templates, which show a call so. GLM 4.5 and later write tags.


def _read_bare_glm4(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    yield from feed.skip()
    line = yield from feed.starts([f"{name}\n" for name in sink.names])
    if line is not None:
        return (yield from read_arguments(feed, sink, line.strip(), ""))
    feed.rewind()
    feed.mark()
    return (yield from read_bare_calls(feed, sink))


_GLM4: Final = Family(
    name="glm4",
    calls=JSON_TOOLS.calls,
    grammar=CallGrammar(json_call("$name\n"), several=False),
    read_bare=_read_bare_glm4,
    unmarked=UnmarkedForm(
        before=r"\s*{}\n\s*", after="", enforced="the name on a line, then an object"
    ),
    template_markers=(("[gMASK]", "metadata"),),
)

# Hunyuan's dense models: a section of calls whose arguments are fenced. A13B writes an array, as
# Jamba does, and templates don't always show which of them it is. Source: their chat templates.
_HUNYUAN_SECTION: Final = SectionForm("</tool_calls>", "<tool_call>", "</tool_call>")


def _read_hunyuan(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    yield from feed.skip()
    if (yield from feed.char()) in ("[", "{"):
        return (yield from read_json_calls(feed, sink, "</tool_calls>"))
    return (yield from read_section_calls(feed, sink, _HUNYUAN_SECTION))


_HUNYUAN: Final = Family(
    name="hunyuan",
    calls=(
        CallForm("<tool_calls>", "</tool_calls>", _read_hunyuan, ("<tool_call>", "</tool_call>")),
    ),
    grammar=CallGrammar(
        json_call("<tool_call>$name\n```json\n", "\n```\n</tool_call>\n"),
        open="<tool_calls>\n",
        close="</tool_calls>",
    ),
    read_bare=read_bare_calls,
    template_markers=(("<tool_calls>", "<tool_call>", "```json"),),
)

_JAMBA: Final = Family(
    name="jamba",
    calls=_HUNYUAN.calls,
    grammar=json_array("<tool_calls>", "</tool_calls>")[1],
    read_bare=read_bare_calls,
    template_markers=(("<tool_calls>",),),
)

# InternLM 2.5 and 3: an object for a plugin, between tokens. Source: their chat templates.
_INTERNLM: Final = Family(
    name="internlm",
    calls=(json_calls("<|action_start|><|plugin|>", "<|action_end|>"),),
    grammar=CallGrammar(
        json_call(
            '<|action_start|><|plugin|>\n{"name": $json_name, "parameters": ', "}<|action_end|>"
        ),
        between="\n",
    ),
    read_bare=read_bare_calls,
    template_markers=(("<|action_start|>",),),
)

# Kimi K2: a section of calls, each with its name and its number in a header. Models write the
# section's markers in the singular now and then.
_KIMI_CALL: Final = "<|tool_call_begin|>"
_KIMI_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_KIMI_CALL_END: Final = "<|tool_call_end|>"
_KIMI_SECTION: Final = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_SINGULAR: Final = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")
_KIMI_HEADER: Final = re.compile(r"(?:functions\.)?(\S+?)(?::\d+)?")
_KIMI_ID: Final = re.compile(r"functions\..+:\d+")


def _read_kimi(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read a section of calls, ``functions.name:0`` being the header of the first."""
    begun = sink.calls
    while True:
        yield from feed.skip()
        marker = yield from feed.starts((_KIMI_CALL, _KIMI_SECTION[1], _KIMI_SINGULAR[1]))
        if marker != _KIMI_CALL:
            return sink.calls > begun
        header: list[str] = []
        marker = yield from feed.until((_KIMI_ARGUMENTS, _KIMI_CALL_END), header.append)
        match = _KIMI_HEADER.fullmatch("".join(header).strip())
        name = match.group(1) if match else ""
        yield from feed.skip()
        if marker == _KIMI_ARGUMENTS and (yield from feed.starts((_KIMI_CALL_END,))):
            marker = _KIMI_CALL_END
        if marker == _KIMI_CALL_END:
            if name not in sink.names:
                return False
            sink.begin_call(name)
            sink.arguments("{}")
        else:
            if not (yield from read_arguments(feed, sink, name, _KIMI_CALL_END)):
                return False
            yield from feed.skip()
            yield from feed.starts((_KIMI_CALL_END,))
        feed.mark()


def _kimi_call(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    header = special.lark(f"{_KIMI_CALL}functions.{tool.name}:")
    opening, closing = special.lark(_KIMI_ARGUMENTS), special.lark(_KIMI_CALL_END)
    return f"{header} /[0-9]{{1,3}}/ {opening} {json_arguments(tool)} {closing}"


def _kimi_id(call_id: str, name: str, number: int) -> str:
    """Return the id in Kimi's form: its template reads the names of tools from the ids."""
    return call_id if _KIMI_ID.fullmatch(call_id) else f"functions.{name}:{number}"


_KIMI_K2: Final = Family(
    name="kimi_k2",
    calls=(
        CallForm(*_KIMI_SECTION, _read_kimi, (_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_CALL_END)),
        CallForm(*_KIMI_SINGULAR, _read_kimi),
        CallForm(_KIMI_CALL, "", unread(_KIMI_CALL, _read_kimi)),
    ),
    grammar=CallGrammar(_kimi_call, open=_KIMI_SECTION[0], close=_KIMI_SECTION[1]),
    history=HistoryForm(call_id=_kimi_id),
)

# Llama 3.1 to 3.3: an answer is one call as a JSON object, without a marker. Source: their chat
# templates, which ask for this form, and refuse a second call in a message.
_LLAMA3: Final = Family(
    name="llama3_json",
    # The second is the form that Llama 3.1's documentation gives for tools of one's own.
    calls=(*JSON_TOOLS.calls, *QWEN3_CODER.calls[1:]),
    grammar=CallGrammar(json_call('{"name": $json_name, "parameters": ', "}"), several=False),
    read_bare=read_bare_calls,
    unmarked=UnmarkedForm(
        # The models now and then write OpenAI's ``type`` before the name.
        before=r'\s*\{{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"{}"\s*,'
        r'\s*"(parameters|arguments)"\s*:\s*',
        after=r"\s*\}",
        enforced='{"name": "...", "parameters": {...}}',
    ),
    template_markers=(("<|python_tag|>",), ("dictionary of argument name and its value",)),
)

# Mistral: ``[TOOL_CALLS]name[ARGS]{...}``; one array of calls with the tokenizers before v11.


def _read_mistral(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read the text after ``[TOOL_CALLS]``: an array of calls as JSON (the older models), or one
    call as ``name[CALL_ID]id[ARGS]{...}``, in which the id or both markers may be missing."""
    yield from feed.skip()
    if (yield from feed.char()) in ("[", "{", "`"):
        return (yield from read_json_calls(feed, sink, ""))
    name: list[str] = []
    marker = yield from feed.until(("[ARGS]", "[CALL_ID]", "{", "\n"), name.append)
    if marker == "[CALL_ID]":
        marker = yield from feed.until(("[ARGS]", "{", "\n"), discard)
    if marker == "{":
        feed.unread(1)
    return (yield from read_arguments(feed, sink, "".join(name).strip(), ""))


def _mistral_id(call_id: str, name: str, number: int) -> str:
    """Return an id of nine letters and digits: Mistral's templates raise for any other."""
    if re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


_MISTRAL: Final = Family(
    name="mistral",
    calls=(CallForm("[TOOL_CALLS]", "", _read_mistral, ("[ARGS]", "[CALL_ID]")),),
    grammar=CallGrammar(json_call("[TOOL_CALLS]$name[ARGS]")),
    older=(
        "[ARGS]",
        CallGrammar(
            json_call('{"name": $json_name, "arguments": ', "}"),
            open="[TOOL_CALLS] [",
            between=", ",
            close="]",
        ),
    ),
    # The array of the older models, whose marker is left out now and then.
    read_bare=read_bare_json_calls,
    history=HistoryForm(call_id=_mistral_id),
)

# One array of calls between two markers. Sources: the chat templates of Nemotron (Nano v2, Super
# v1.5) and Granite 3 (Granite 4 writes JSON_TOOLS), the tokenizer and the model card of Phi-4-mini.


def _array(
    name: str, start: str, end: str, *markers: str, others: tuple[CallForm, ...] = ()
) -> Family:
    form, grammar = json_array(start, end)
    return Family(
        name=name,
        calls=(form, *others),
        grammar=grammar,
        read_bare=read_bare_calls,
        template_markers=(markers,),
    )


_NEMOTRON: Final = _array("nemotron", "<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>")
_GRANITE: Final = _array("granite", "<|tool_call|>", "", "<|tool_call|>")
_PHI4: Final = _array(
    "phi4",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|tool|>",
    "<|/tool|>",
    # What the model writes without its tokens. The word alone is text.
    others=tuple(json_calls(f"functools{space}[", "") for space in ("", " ", "\n")),
)

JSON_FAMILIES: Final = (
    JSON_TOOLS,
    _APERTUS,
    _COHERE2_MOE,
    _DEEPSEEK_V3,
    _DEEPSEEK_V31,
    _GIGACHAT,
    _GLM4,
    _HUNYUAN,
    _INTERNLM,
    _JAMBA,
    _KIMI_K2,
    _LLAMA3,
    _MISTRAL,
    _NEMOTRON,
    _PHI4,
    _GRANITE,
)
"""Of several that a chat template shows, the first counts."""
