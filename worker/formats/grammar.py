"""The grammar of tool calls, in the form of each family. Pure.

A family's own form is used for a tool whose arguments it can express and its parser reads back
unchanged. All other calls are written as JSON in ``<tool_call>``, which is read with every family.
gpt-oss's calls are always in its own form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lmx.worker.formats.families.json.json_tools import JSON_CALLS, JSON_TOOLS
from lmx.worker.formats.families.table import call_forms
from lmx.worker.formats.family import CallGrammar, Family, Rules, SpecialTokens, Tool
from lmx.worker.schemas.grammar import Grammar


def tools_grammar(
    tools: Sequence[Tool], family: Family, parallel: bool, special: SpecialTokens
) -> Grammar:
    """Return the grammar of one call; with ``parallel``, of one or more, if the family has such
    answers."""
    rules, form, call = _calls(tools, family, special)
    between, close = special.lark(form.between), special.lark(form.close)
    parallel = parallel and form.several
    if form.close == "" and between:
        # Nothing encloses the calls, so a line break does not promise another call.
        between = f"({between})?"
        close = between if parallel else ""
    more = f" ({between} {call})*" if parallel else ""
    start = f"{special.lark(form.open)} {call}{more} {close}"
    return _grammar(rules, start)


def free_grammar(
    tools: Sequence[Tool], family: Family, parallel: bool, special: SpecialTokens
) -> Grammar | None:
    """Return the grammar of an answer that may be any text, and in which calls are held to their
    form from the token on that begins them.

    None where that is no special token, of which free text has none. Nor has free text the marks
    of other forms, so that no call is made in one of those.
    """
    rules, form, call = _calls(tools, family, special)
    if not begins_by_token(family, special, form):
        return None
    texts = [one.start for one in call_forms(family) if not special.begins(one.start)]
    without = "".join(f" & ~/(.|\\n)*{_escaped(text)}(.|\\n)*/" for text in texts)
    free = rules.terminal(f"/(.|\\n)*/{without}")
    more = ""
    if form.close and form.several and parallel:
        more = f" ({special.lark(form.between)} {call})*"
    block = f"{special.lark(form.open)} {call}{more} {special.lark(form.close)}"
    # The only call that is wanted ends the answer.
    return _grammar(rules, f"{free} ({block} {free})*" if parallel else f"{free} ({block})?")


def begins_by_token(
    family: Family, special: SpecialTokens, form: CallGrammar | None = None
) -> bool:
    """Return whether calls of a form begin with a special token; of the family's own form, where
    none is given."""
    form = form or family.grammar_for(special) or JSON_CALLS
    marks = JSON_TOOLS.calls if form is JSON_CALLS else family.calls
    return bool(marks) and family.answer is None and special.begins(marks[0].start)


def _calls(
    tools: Sequence[Tool], family: Family, special: SpecialTokens
) -> tuple[Rules, CallGrammar, str]:
    """Return the rules of a call, the form that it has, and the name of its rule."""
    rules = Rules()
    form = family.grammar_for(special) or JSON_CALLS
    calls = [form.write(rules, tool, special) for tool in tools]
    if None in calls:
        # Of calls in two forms one could come in the place of the other.
        rules = Rules()
        form = JSON_CALLS
        calls = [form.write(rules, tool, special) for tool in tools]
    return rules, form, rules.rule(" | ".join(f"({one})" for one in calls))


def _escaped(text: str) -> str:
    return re.sub(r"[^\w\s<>]", lambda found: "\\" + found[0], text)


def _grammar(rules: Rules, start: str) -> Grammar:
    return {"lark_grammar": "\n".join(["%llguidance {}", f"start: {start}", *rules.lines])}
