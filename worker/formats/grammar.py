"""Grammars for tool calls, in the form of each model family. Pure.

A family's form is used for a tool whose arguments it can express and its parser reads back as
they are. All other calls are written as JSON in ``<tool_call>``, which is read with every
family (:mod:`lmx.worker.formats.forms`); gpt-oss's are always in its own form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lmx.worker.formats import harmony
from lmx.worker.formats.arguments import Rules, TagForm, tagged_arguments
from lmx.worker.formats.literals import gemma_arguments, python_arguments
from lmx.worker.schemas.grammar import Grammar, guided, quoted

HARMONY: Final = "harmony"


class Tool(NamedTuple):
    """A function that may be called, and the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens of a vocabulary that are no text to a grammar, by name."""

    ids: Mapping[str, int]

    def lark(self, text: str) -> str:
        """Return Lark that matches ``text``, in which special tokens have their names."""
        names = sorted(self.ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        atoms = [
            f"<[{self.ids[part]}]>" if part in self.ids else quoted(part) for part in parts if part
        ]
        return " ".join(atoms)


class _Frame(NamedTuple):
    """What is around a family's calls: before the first, between two, behind the last."""

    open: str
    between: str
    close: str


Call = Callable[[Rules, Tool, SpecialTokens], str | None]
"""Returns a call as Lark, None when the family's form can't express it."""


def tools_grammar(
    tools: Sequence[Tool], tool_parser: str | None, parallel: bool, special: SpecialTokens
) -> Grammar:
    """Return the grammar of one call, with ``parallel`` of one or more.

    Calls of gpt-oss are one to an answer: its first call ends the answer.
    """
    rules = Rules()
    frame, write = _family(tool_parser, special)
    calls = [write(rules, tool, special) for tool in tools]
    if tool_parser == HARMONY:
        parallel = False
    elif None in calls:
        # Of calls in two forms one could come in the place of the other.
        rules = Rules()
        frame, write = _FAMILIES[None]
        calls = [write(rules, tool, special) for tool in tools]
    call = rules.rule(" | ".join(f"({one})" for one in calls))
    between, close = special.lark(frame.between), special.lark(frame.close)
    if frame.close == "" and between:
        # Nothing encloses the calls: a line break is not yet the promise of another.
        between = f"({between})?"
        close = between if parallel else ""
    more = f" ({between} {call})*" if parallel else ""
    start = f"{special.lark(frame.open)} {call}{more} {close}"
    return {"lark_grammar": "\n".join(["%llguidance {}", f"start: {start}", *rules.lines])}


def harmony_answer(special: SpecialTokens, answer: str) -> str:
    """Return Lark for the message that a gpt-oss answer is in; ``answer`` is its grammar's name."""
    return f"%llguidance {{}}\nstart: {_harmony(special, 'final')} @{answer}"


def _harmony(special: SpecialTokens, header: str) -> str:
    """Return the header of a message, which begins where the prompt or the thinking ended."""
    start = special.lark(f"{harmony.START}assistant")
    return f"({start})? {special.lark(f'{harmony.CHANNEL}{header}{harmony.MESSAGE}')}"


def _json(tool: Tool) -> str:
    return f"%json {json.dumps(guided(tool.parameters))}"


def _around(before: str, after: str, special: SpecialTokens, tool: Tool) -> str:
    return f"{special.lark(before)} {_json(tool)} {special.lark(after)}"


def _json_tools(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    name = json.dumps(tool.name)
    return _around(
        f'<tool_call>\n{{"name": {name}, "arguments": ', "}\n</tool_call>", special, tool
    )


def _mistral(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    return _around(f"[TOOL_CALLS]{tool.name}[ARGS]", "", special, tool)


def _mistral_array(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    return _around(f'{{"name": {json.dumps(tool.name)}, "arguments": ', "}", special, tool)


def _kimi(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    header = special.lark(f"<|tool_call_begin|>functions.{tool.name}:")
    body = _around("<|tool_call_argument_begin|>", "<|tool_call_end|>", special, tool)
    return f"{header} /[0-9]{{1,3}}/ {body}"


def _cohere(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    opening = special.lark('{"tool_call_id": "')
    middle = f'", "tool_name": {json.dumps(tool.name)}, "parameters": '
    return f"{opening} /[0-9]{{1,3}}/ {_around(middle, '}', special, tool)}"


def _gpt_oss(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    header = f"commentary to=functions.{tool.name} {harmony.CONSTRAIN}json"
    return f"{_harmony(special, header)} {_json(tool)}"


def _pythonic(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
    arguments = python_arguments(rules, tool.parameters) if tool.name.isidentifier() else None
    return arguments and f'{quoted(tool.name + "(")} {arguments} ")"'


def _gemma(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
    arguments = gemma_arguments(rules, tool.parameters, special.lark)
    if arguments is None:
        return None
    opening = special.lark(f"<|tool_call>call:{tool.name}")
    return f"{opening} {arguments} {special.lark('<tool_call|>')}"


def _tagged(before: str, form: TagForm, after: str) -> Call:
    """Return the writer of a form with a tag for each argument."""

    def write(rules: Rules, tool: Tool, special: SpecialTokens) -> str | None:
        arguments = tagged_arguments(rules, tool.parameters, form, special.lark)
        if arguments is None:
            return None
        return f"{special.lark(before.format(tool.name))} {arguments} {special.lark(after)}"

    return write


def _glm(prefix: str) -> Call:
    closing = f"</{prefix}arg_value>"
    open_value = f"<{prefix}arg_key>{{}}</{prefix}arg_key>\n<{prefix}arg_value>"
    form = TagForm(open_value, f"{closing}\n", closing, strips=True, any_json=True)
    return _tagged(f"<{prefix}tool_call>{{}}\n", form, f"</{prefix}tool_call>")


_ALONE: Final = _Frame("", "\n", "")
_FAMILIES: Final[Mapping[str | None, tuple[_Frame, Call]]] = {
    None: (_ALONE, _json_tools),
    "mistral": (_Frame("", "", ""), _mistral),
    "kimi_k2": (
        _Frame("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        _kimi,
    ),
    "cohere2_moe": (_Frame("<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>"), _cohere),
    "pythonic": (_Frame("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"), _pythonic),
    "glm47": (_ALONE, _glm("")),
    "longcat": (_ALONE, _glm("longcat_")),
    "qwen3_coder": (
        _ALONE,
        _tagged(
            "<tool_call>\n<function={}>\n",
            TagForm(
                "<parameter={}>\n",
                "\n</parameter>\n",
                "</parameter>",
                strips=False,
                any_json=False,
            ),
            "</function>\n</tool_call>",
        ),
    ),
    "minimax_m2": (
        _Frame("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
        _tagged(
            '<invoke name="{}">\n',
            TagForm(
                '<parameter name="{}">',
                "</parameter>\n",
                "</parameter>",
                strips=True,
                any_json=False,
            ),
            "</invoke>",
        ),
    ),
    "gemma4": (_Frame("", "", ""), _gemma),
    HARMONY: (_Frame("", "", ""), _gpt_oss),
}


def _family(tool_parser: str | None, special: SpecialTokens) -> tuple[_Frame, Call]:
    if tool_parser == "mistral" and "[ARGS]" not in special.ids:
        # The tokenizers before v11 have calls as one array.
        return _Frame("[TOOL_CALLS] [", ", ", "]"), _mistral_array
    return _FAMILIES.get(tool_parser, _FAMILIES[None])
