"""A custom tool's grammar is enforced in the calls of every family of models."""

import json
import re
from typing import Any

import pytest

from lmx.protocol.states import ToolChoice
from lmx.router.rendering.responses.items import ItemForm
from lmx.router.schema.requests.responses.responses import asked_of, parse_responses
from lmx.worker.engine.values import Constraint
from tests.support.clients.codex_request import PATCH_GRAMMAR
from tests.support.references.grammar_walk import allowed_tokens, allows
from tests.support.rigs.tool_families import PHRASES, the_family

GRAMMAR = r"""
start: "*** Begin" LF line+ "*** End" LF?
line: ("+" | "-") /[a-z"<\\]{0,4}/ LF -> line
%import common.LF
"""
PATTERN = re.compile(r'\*\*\* Begin\n(?:[+-][a-z"<\\]{0,4}\n)+\*\*\* End\n?')


def offered(syntax: str, definition: str, **fields: Any) -> Any:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool = {"type": "custom", "name": "apply_patch", "format": form}
    body = {"input": "hi", "tools": [tool], **fields}
    request = parse_responses(body)
    return asked_of(request, request.items, b"").tools


# One for each way to write a text: as JSON, between tags, in quotes of three kinds.
@pytest.mark.parametrize(
    "name",
    [
        "unknown", "json_tools", "mistral", "kimi_k2", "pythonic", "glm47", "qwen3_coder",
        "minimax_m2", "gemma4", "harmony", "deepseek_v32", "llama3_json", "step3",
    ],
)  # fmt: skip
def test_an_input_that_must_be_given_follows_its_grammar(name: str) -> None:
    family = the_family(name)
    tools = offered("lark", GRAMMAR, tool_choice={"type": "custom", "name": "apply_patch"})
    assert tools.use is not None and tools.use.choice is ToolChoice.REQUIRED
    items = ItemForm(tools.called)
    text = family.draw(tools.use, 0, [*PHRASES, "\n*** End"])
    ((called, arguments),) = family.calls(text, tools.use.tools)
    given = items.given(called, json.dumps(arguments))
    assert PATTERN.fullmatch(given), (given, text)


def test_a_patch_is_held_to_its_grammar_where_it_may_be_given() -> None:
    family = the_family("json_tools")
    tools = offered("lark", PATCH_GRAMMAR)
    assert tools.use is not None and tools.use.choice is ToolChoice.AUTO
    head = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "'
    good = r"*** Begin Patch\n*** Add File: a.py\n+print(\"x\")\n*** End Patch\n"
    for text, is_good in ((good, True), (good.replace("+print", "print"), False)):
        constraint = family.constraint(tools.use)
        tokens = family.tokens(f'Let me see. {head}{text}"}}}}\n</tool_call>')
        assert _allows(constraint, tokens) is is_good


def _allows(constraint: Constraint, tokens: list[int]) -> bool:
    for token in tokens:
        allowed = allowed_tokens(constraint)
        if allowed is not None and not allows(allowed, token):
            return False
        constraint.accept(token)
    return True
