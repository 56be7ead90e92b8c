"""A custom tool's grammar is enforced in the calls of every family of models."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from grammar_walk import allowed_tokens, allows
from tool_families import CASE_IDS, CASES, PHRASES, the_family

from lmx.protocol.states import ToolChoice
from lmx.router.rendering.responses.items import ItemForm
from lmx.router.schema.requests.responses.responses import asked_of, parse_responses
from lmx.worker.engine import Constraint

GRAMMAR = r"""
start: "*** Begin" LF line+ "*** End" LF?
line: ("+" | "-") /[a-z"<\\]{0,4}/ LF -> line
%import common.LF
"""
PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATTERN = re.compile(r'\*\*\* Begin\n(?:[+-][a-z"<\\]{0,4}\n)+\*\*\* End\n?')


def offered(syntax: str, definition: str, **fields: Any) -> Any:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool = {"type": "custom", "name": "apply_patch", "format": form}
    body = {"input": "hi", "tools": [tool], **fields}
    request = parse_responses(body)
    return asked_of(request, request.items, b"").tools


@pytest.mark.parametrize(("name", "as_text"), CASES, ids=CASE_IDS)
def test_an_input_that_must_be_given_follows_its_grammar(name: str, as_text: bool) -> None:
    family = the_family(name, as_text)
    tools = offered("lark", GRAMMAR, tool_choice={"type": "custom", "name": "apply_patch"})
    assert tools.use is not None and tools.use.choice is ToolChoice.REQUIRED
    items = ItemForm(tools.called)
    text = family.draw(tools.use, 0, [*PHRASES, "\n*** End"])
    ((called, arguments),) = family.calls(text, tools.use.tools)
    given = items.given(called, json.dumps(arguments))
    assert PATTERN.fullmatch(given), (given, text)


def test_a_patch_is_held_to_its_grammar_where_it_may_be_given() -> None:
    family = the_family("json_tools")
    tools = offered("lark", PATCH)
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
