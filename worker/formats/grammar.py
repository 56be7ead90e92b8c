"""The grammar of tool calls, in the form of each family. Pure.

A family's own form is used for a tool whose arguments it can express and its parser reads back
unchanged. All other calls are written as JSON in ``<tool_call>``, which is read with every family.
gpt-oss's calls are always in its own form.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmx.worker.formats.families.json import JSON_CALLS
from lmx.worker.formats.family import CallGrammar, Family, Rules, SpecialTokens, Tool
from lmx.worker.schemas.grammar import Grammar


def tools_grammar(
    tools: Sequence[Tool], family: Family, parallel: bool, special: SpecialTokens
) -> Grammar:
    """Return the grammar of one call; with ``parallel``, of one or more, if the family has such
    answers."""
    rules, form, call = written_calls(tools, family, special)
    between, close = special.lark(form.between), special.lark(form.close)
    parallel = parallel and form.several
    if form.close == "" and between:
        # Nothing encloses the calls, so a line break does not promise another call.
        between = f"({between})?"
        close = between if parallel else ""
    more = f" ({between} {call})*" if parallel else ""
    start = f"{special.lark(form.open)} {call}{more} {close}"
    return lark_grammar(rules, start)


def written_calls(
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


def lark_grammar(rules: Rules, start: str) -> Grammar:
    """Return the grammar of these rules that begins with ``start``."""
    return {"lark_grammar": "\n".join(["%llguidance {}", f"start: {start}", *rules.lines])}
