"""The grammar of tool calls, in the form of each family. Pure.

A family's own form is used for a tool whose arguments it can express and its parser reads back
unchanged. All other calls are written as JSON in ``<tool_call>``, which is read with every family.
gpt-oss's calls are always in its own form.

Calls must be made (:func:`tools_grammar`), or stand in an answer of any text (:func:`free_text`).
That text is free until a call begins: by a special token, by a marker that is ordinary text and may
come in any number of tokens, or, for a family without markers, by the call's own first characters.
From there on the grammar of the calls holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lmx.worker.formats.families.json import JSON_CALLS, JSON_TOOLS
from lmx.worker.formats.families.table import call_forms
from lmx.worker.formats.family import (
    CallForm,
    CallGrammar,
    Family,
    Rules,
    SpecialTokens,
    Tool,
    UnmarkedForm,
)
from lmx.worker.formats.forms.json import json_arguments
from lmx.worker.schemas.grammar import Grammar, escaped, quoted

_ANY: Final = "(?s:.*)"


def tools_grammar(
    tools: Sequence[Tool], family: Family, parallel: bool, special: SpecialTokens
) -> Grammar:
    """Return the grammar of one call; with ``parallel``, of more if the family has them."""
    rules, form, call = _written_calls(tools, family, special)
    between, close = special.lark(form.between), special.lark(form.close)
    parallel = parallel and form.several
    if form.close == "" and between:
        # Nothing encloses the calls, so a line break does not promise another call.
        between = f"({between})?"
        close = between if parallel else ""
    more = f" ({between} {call})*" if parallel else ""
    start = f"{special.lark(form.open)} {call}{more} {close}"
    if family.messages is not None:
        start = f"{family.messages.header(special, [tool.name for tool in tools])} {start}"
    return _lark_grammar(rules, start)


def _written_calls(
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


def _lark_grammar(rules: Rules, start: str) -> Grammar:
    """Return the grammar of these rules that begins with ``start``."""
    return {"lark_grammar": "\n".join(["%llguidance {}", f"start: {start}", *rules.lines])}


class FreeText(NamedTuple):
    """What can be done about the calls in an answer of any text."""

    grammar: Grammar | None
    """The grammar of the answer. None: its calls can't be held to their form."""
    remark: str = ""
    """Why calls are not held to their form: a part of a sentence for people. Empty: all are."""
    marked: bool = True
    """Whether text is a call only after the marker with which the family's calls begin."""


def free_text(
    tools: Sequence[Tool], family: Family, parallel: bool, special: SpecialTokens
) -> FreeText:
    """Return the grammar of an answer of any text with calls of these tools in it.

    The answer may end at any place outside a call. Without ``parallel`` it ends after the first
    call. The markers of other forms of calls are no part of its text, so that no call is made in
    one of those.
    """
    rules = Rules()
    if fault := never_enforced(family, special):
        return FreeText(None, fault)
    if family.answer is not None:
        return FreeText(_lark_grammar(rules, family.answer.free(rules, tools, special)))
    if family.unmarked is not None:
        start = _unmarked(rules, tools, family, family.unmarked, special)
        remark = (
            "this model puts no marker before its calls, so that only a call with which an answer "
            f"begins in exactly this form is enforced: {family.unmarked.enforced}"
        )
        return FreeText(_lark_grammar(rules, start), remark, marked=False)
    _, form, _ = _written_calls(tools, family, special)
    marker = (JSON_TOOLS if form is JSON_CALLS else family).calls[0]
    if marker.start != family.calls[0].start:
        return FreeText(
            None,
            "the form of this model's calls can't express the arguments of one of the functions",
        )
    return FreeText(_marked(tools, family, parallel, special, form, marker))


def never_enforced(family: Family, special: SpecialTokens) -> str:
    """Return why this model's calls can't be enforced in free text; "" if they can."""
    if family.answer is not None:
        missing = [one for one in family.answer.tokens if one not in special.ids]
        return f"this model's vocabulary has no token {missing[0]!r}" if missing else ""
    own = family.calls[0].start
    if family.grammar is None and own != JSON_TOOLS.calls[0].start:
        return f"this model marks its calls with {own!r}, and lmx has no grammar of them"
    return ""


def _marked(
    tools: Sequence[Tool],
    family: Family,
    parallel: bool,
    special: SpecialTokens,
    form: CallGrammar,
    marker: CallForm,
) -> Grammar:
    begun = SpecialTokens(special.ids, special.ends, begun=marker.start)
    rules, _, call = _written_calls(tools, family, begun)
    free = _Free.write(rules, family, special)
    more = ""
    if form.close and form.several and parallel:
        more = f" ({special.lark(form.between)} {call})*"
    head = free.before(rules, marker.start, special)
    block = f"{head} {begun.lark(form.open)} {call}{more} {special.lark(form.close)}"
    if not parallel or (marker.end == "" and form.close):
        # After an array without an end marker the reader takes further objects for calls too.
        return _lark_grammar(rules, f"{free.rest} | {block}")
    return _lark_grammar(rules, f"({block})* {free.rest}")


def _unmarked(
    rules: Rules, tools: Sequence[Tool], family: Family, form: UnmarkedForm, special: SpecialTokens
) -> str:
    before = {tool.name: form.before.format(escaped(tool.name)) for tool in tools}
    # Text that begins like a call is one.
    free = _Free.write(rules, family, special, f"({'|'.join(before.values())})\\{{{_ANY}")
    after = rules.terminal(f"/{form.after}/") if form.after else ""
    calls = [
        f"{rules.terminal(f'/{before[tool.name]}/')} {json_arguments(tool)} {after}"
        for tool in tools
    ]
    return f"{free.rest} | {free.skipped} ({' | '.join(calls)})"


class _Free(NamedTuple):
    """The rules of text in which no call begins."""

    text: str
    """The terminal of text without special tokens."""
    lead: str
    """Lark for text that ends with a special token, or is empty."""
    skipped: str
    """Lark for special tokens alone, which are no text to the reader."""

    @classmethod
    def write(
        cls, rules: Rules, family: Family, special: SpecialTokens, without: str = ""
    ) -> _Free:
        """Add the rules. ``without`` is a regular expression that matches none of the text."""
        forms = call_forms(family)
        starts = {form.start for form in forms}
        markers = {text for form in forms for text in (form.start, form.end, *form.tokens)}
        unwanted = f"{_ANY}({'|'.join(map(escaped, sorted(starts)))}){_ANY}"
        unwanted += f"|{without}" if without else ""
        text = rules.terminal(f"/{_ANY}/ & ~/{unwanted}/")
        tokens = _other_tokens(special, markers)
        if not tokens:
            return cls(text, "", "")
        # The reader sees no token between two pieces of text: together they must be no marker.
        begun = {start[:length] for start in starts for length in range(1, len(start))}
        cut = rules.terminal(f"{text} & ~/{_ANY}({'|'.join(map(escaped, sorted(begun)))})/")
        return cls(text, f"({cut} {tokens})*", f"({tokens})*")

    @property
    def rest(self) -> str:
        """Lark for text up to the end of the answer."""
        return f"{self.lead} {self.text}"

    def before(self, rules: Rules, marker: str, special: SpecialTokens) -> str:
        """Return Lark for text up to and including ``mark``."""
        parts = special.split(marker)
        if parts[0] in special.ids:
            return f"{self.rest} {special.lark(marker)}"
        text = rules.terminal(f"{self.text} {quoted(parts[0])}")
        if len(parts) == 1:
            # The text ends as soon as it has the marker.
            text = rules.rule(text, "[lazy]")
        return " ".join([self.lead, text, special.lark(marker.removeprefix(parts[0]))])


def _other_tokens(special: SpecialTokens, markers: Iterable[str]) -> str:
    """Return Lark for a special token that neither ends an answer nor is a part of one of
    ``marks``; "" if no token is left."""
    markers = tuple(markers)
    ids = sorted(
        number
        for name, number in special.ids.items()
        if number not in special.ends and not any(name in marker for marker in markers)
    )
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    listed = ",".join(f"{first}-{last}" for first, last in ranges)
    return f"<[{listed}]>" if listed else ""
