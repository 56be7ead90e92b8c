"""Calls of strict functions that the model makes of its own accord, in an answer of any text."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from lmx.protocol.messages.data import Thinking, ToolUse
from lmx.protocol.states import DeltaKind, ToolChoice
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import ConstraintMaker, ConstraintSource
from lmx.worker.formats.families.table import call_forms, family_of
from lmx.worker.formats.parser import OutputParser
from tests.support.models.tiny_models import make_word_tokenizer
from tests.support.references.grammar_walk import allowed_set, feed, walk
from tests.support.rigs.tool_families import (
    CASES,
    ENDS,
    SINGLE,
    TOOLS,
    Family,
    check,
    closed,
    parameters,
    required,
    strict,
    the_family,
)

# lmx has no grammar of its form.
UNKNOWN = {"minimax_m3"}
# Without a mark: what a call has before its arguments.
UNMARKED = {"glm4": "weather\n{", "llama3_json": '{"name": "weather", "parameters": {'}
ENFORCED = [(name, as_text) for name, as_text in CASES if name not in UNKNOWN]
enforced = pytest.mark.parametrize(("family", "as_text"), parameters(ENFORCED))


def compiled(it: Family, use: ToolUse) -> ConstraintMaker:
    maker = it.compiler.compile(ConstraintSource(None, use, Thinking(), False))
    assert maker is not None
    return maker


def around(family: str, it: Family) -> tuple[str, str]:
    """Return free text, and the mark that begins a call behind it."""
    if family == "harmony":
        return (
            "<|channel|>commentary<|message|>I look to=x.<|start|>assistant",
            "<|channel|>commentary to=",
        )
    if family in UNMARKED:
        return "", UNMARKED[family]
    return 'Well: {"name": "weather"} is < or > /that/.\n', family_of(it.parser).calls[0].start


def read(it: Family, use: ToolUse, text: str, *, marked: bool) -> tuple[str, list[tuple[str, Any]]]:
    """Return the content and the calls that a client gets of this text."""
    parser = OutputParser(None, False, it.parser, use.tools, not use.one_call, marked_calls=marked)
    parts = [*parser.add(text), *parser.finish()]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for part in parts:
        if part.call is not None:
            names.setdefault(part.call.index, part.call.name or "")
            arguments[part.call.index] = arguments.get(part.call.index, "") + part.text
    content = "".join(part.text for part in parts if part.kind is DeltaKind.CONTENT)
    return content, [(name, json.loads(arguments[index])) for index, name in names.items()]


@enforced
def test_a_strict_call_is_held_to_its_form_behind_free_text(family: str, as_text: bool) -> None:
    it = the_family(family, as_text)
    use = strict(["weather", "typed"], parallel=False)
    reported, mark = around(family, it)
    maker = compiled(it, use)
    for seed in range(2):
        one = maker()
        feed(one, it.tokens(reported))
        assert allowed_set(one) >= it.eos, "the answer may end where it is"
        feed(one, it.tokens(mark))
        drawn = [*it.tokens(reported + mark), *walk(one, it.tokenizer, it.eos, seed, ENDS)]
        text = str(it.tokenizer.decode(drawn, skip_special_tokens=False))
        content, calls = read(it, use, text, marked=maker.marked_calls)
        assert content.strip() in (reported.strip(), "I look to=x.")
        assert len(calls) == 1
        check(calls)


@enforced
def test_an_answer_without_calls_is_free(family: str, as_text: bool) -> None:
    it = the_family(family, as_text)
    one = it.constraint(strict(["weather", "typed"]))
    if family == "harmony":
        feed(one, it.tokens("<|channel|>final<|message|>"))
    plain = set(it.tokens("".join(map(chr, range(128)))))
    text = 'Née <|user|> <b> </b> [1] {"a": "b"}\n\t``` <tool weather( to-day < <\n<|'
    others = set(it.tokens("<|system|><|user|>")) if family != "harmony" else set()
    forms = call_forms(family_of(it.parser)) if others else ()
    begun = {form.start[:length] for form in forms for length in range(1, len(form.start))}
    written = ""
    for char in re.findall(r"<\|user\|>|.|\n", text):
        if char == "<|user|>" and not others:
            continue
        feed(one, it.tokens(char))
        written += char
        # Where a mark may have begun no other token may cut it in two.
        cut = not written.endswith(tuple(begun)) or not others
        if char.isascii():
            assert allowed_set(one) >= plain | it.eos | (others if cut else set()), written


@enforced
def test_where_calls_are_not_parallel_one_ends_the_answer(family: str, as_text: bool) -> None:
    it = the_family(family, as_text)
    use = strict(["nothing"], parallel=False)
    call = it.draw(required(["nothing"], parallel=False), 0)
    reported = "" if family in UNMARKED or family == "harmony" else "Now.\n"
    maker = compiled(it, use)
    one = maker()
    feed(one, it.tokens(reported + call))
    assert allowed_set(one) == it.eos
    parser = OutputParser(None, False, it.parser, use.tools, False, marked_calls=maker.marked_calls)
    parser.add(reported + call)
    parser.finish()
    assert parser.called


@enforced
def test_every_strict_call_of_an_answer_is_held_to_its_form(family: str, as_text: bool) -> None:
    it = the_family(family, as_text)
    use = strict(["weather", "nothing"])
    maker = compiled(it, use)
    one = maker()
    call = it.draw(required(["nothing"], parallel=False), 0)
    reported, mark = around(family, it)
    if family in SINGLE:
        feed(one, it.tokens(reported + call))
        assert allowed_set(one) == it.eos
        return
    text = f"{reported}{call}"
    feed(one, it.tokens(text))
    form = family_of(it.parser).calls[0]
    if not form.end and call.endswith("]"):
        # An array that no mark ends: the calls are all in it.
        assert allowed_set(one) == it.eos
        return
    feed(one, it.tokens(f"\nAnd {mark}"))
    assert len(allowed_set(one)) < 10
    assert read(it, use, text, marked=True)[1] == [("nothing", {})]


@enforced
def test_free_text_has_no_call_in_another_form(family: str, as_text: bool) -> None:
    it = the_family(family, as_text)
    if family == "harmony" or family_of(it.parser).calls[0].start == "<tool_call>":
        return
    one = it.constraint(strict(["weather"]))
    feed(one, it.tokens("a "))
    mark = it.tokens("<tool_call>")
    feed(one, mark[:-1])
    assert mark[-1] not in allowed_set(one)


@pytest.mark.parametrize("family", ["json_tools", "kimi_k2", "gemma4", "deepseek_v32"])
def test_a_mark_is_not_spelled_with_other_tokens(family: str) -> None:
    it = the_family(family)
    one = it.constraint(strict(["weather"]))
    start = family_of(it.parser).calls[0].start
    spelled = [token for char in start for token in it.tokens(char)]
    feed(one, [*it.tokens("a "), *spelled[:-1]])
    assert spelled[-1] not in allowed_set(one)


@pytest.mark.parametrize("family", ["json_tools", "unknown", "jamba", "hunyuan"])
def test_a_token_that_is_no_text_does_not_cut_a_mark_in_two(family: str) -> None:
    # The reader does not see it.
    it = the_family(family, True)
    one = it.constraint(strict(["weather"]))
    feed(one, it.tokens("a <tool"))
    (other,) = it.tokens("<|user|>")
    assert other not in allowed_set(one)
    feed(one, it.tokens(" "))
    assert other in allowed_set(one)


# Tokens that have more than a mark, or a part of it


def test_a_mark_may_begin_and_end_inside_tokens() -> None:
    words = ["ok.<tool", "_call>\n{", "_call>[", "<tool_call>\nx", 'ok <tool_call>\n{"', "_cal"]
    tokenizer = make_word_tokenizer(words)
    begins, goes_on, wrong, whole, right, part = range(256, 262)
    compiler = ConstraintCompiler(
        tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}), None, "json_tools"
    )
    maker = compiler.compile(ConstraintSource(None, strict(["weather"]), Thinking(), False))
    assert maker is not None
    one = maker()
    assert {begins, right, part} <= allowed_set(one)
    assert whole not in allowed_set(one)
    fork = one.fork()
    feed(one, [begins])
    assert goes_on in allowed_set(one)
    assert wrong not in allowed_set(one)
    feed(one, [goes_on])
    assert allowed_set(one) == {tokenizer.convert_tokens_to_ids('"')}
    feed(fork, [right])
    assert tokenizer.convert_tokens_to_ids("n") in allowed_set(fork)
    assert tokenizer.eos_token_id not in allowed_set(fork)


# Without a mark


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann", "parameters": {"days": 99}}',
        '{"name": "weather", "description": "How it is"}',
        '{"city": "Oslo"}',
        '[{"name": "weather", "parameters": {"days": 99}}]',
        'So: {"name": "weather", "parameters": {"days": 99}}',
        "{",
    ],
)
def test_json_that_is_no_call_is_free_where_calls_are_json(text: str) -> None:
    it = the_family("llama3_json")
    one = it.constraint(strict(["weather"]))
    feed(one, it.tokens(text))
    assert allowed_set(one) >= it.eos


@pytest.mark.parametrize(
    "begun",
    [
        '{"name": "weather", "parameters": ',
        ' {"name":"weather","arguments":',
        '<|user|>{\n"type": "function", "name": "weather", "parameters": ',
    ],
)
def test_json_that_is_a_call_is_enforced_where_calls_are_json(begun: str) -> None:
    it = the_family("llama3_json")
    use = strict(["weather"])
    one = it.constraint(use)
    feed(one, it.tokens(begun))
    fork = one.fork()
    feed(one, it.tokens('{"city": "Oslo", "days": '))
    assert set(it.tokens('9"')) & allowed_set(one) == set(it.tokens("9"))
    feed(one, it.tokens("9"))
    assert it.tokens("9")[0] not in allowed_set(one)
    feed(fork, it.tokens('{"city": "Oslo"}}'))
    assert allowed_set(fork) == it.eos
    text = f"{begun.removeprefix('<|user|>')}" + '{"city": "Oslo"}}'
    assert read(it, use, text, marked=False)[1] == [("weather", {"city": "Oslo"})]


@pytest.mark.parametrize("text", ["weather", "weather\n", "weather\nis fine", "The weather\n{"])
def test_text_that_begins_like_a_name_is_free(text: str) -> None:
    it = the_family("glm4")
    one = it.constraint(strict(["weather"]))
    feed(one, it.tokens(text))
    assert allowed_set(one) >= it.eos


# gpt-oss


def harmony(text: str, *, parallel: bool = True) -> tuple[Family, set[int]]:
    it = the_family("harmony")
    one = it.constraint(strict(["weather", "nothing"], parallel))
    feed(one, it.tokens(text))
    return it, allowed_set(one)


@pytest.mark.parametrize(
    "text",
    [
        "just words",
        "<|channel|>final<|message|>to=functions.nobody {",
        "<|channel|>final <|constrain|>json<|message|>{}",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>x",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant",
    ],
)
def test_messages_of_gpt_oss_are_free(text: str) -> None:
    it, choices = harmony(text)
    assert choices >= {*it.eos, *it.tokens("a{<")}


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.nothing <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.nothing<|message|>",
        "<|start|>assistant<|channel|>commentary to=functions.nothing json<|message|>",
        " to=functions.nothing<|channel|>commentary <|constrain|>json<|message|>",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.nothing"
        "<|channel|>commentary<|message|>",
    ],
)
def test_a_call_of_gpt_oss_is_enforced_wherever_its_recipient_stands(header: str) -> None:
    it, choices = harmony(header)
    assert choices == set(it.tokens("{"))
    it, choices = harmony(header + "{}")
    assert choices == it.eos
    content, calls = read(it, strict(["nothing"]), header + "{}<|call|>", marked=True)
    assert (content, calls) == ("", [("nothing", {})])


def test_gpt_oss_calls_no_tool_that_it_does_not_have() -> None:
    it, choices = harmony("<|channel|>commentary to=")
    assert choices == set(it.tokens("f"))
    it, choices = harmony("<|channel|>commentary to=functions.")
    assert choices == set(it.tokens("wn"))


# Where it can't be done


def log_of(it: Family, source: ConstraintSource) -> tuple[list[ConstraintMaker | None], list[Any]]:
    with capture_logs() as lines:
        makers = [it.compiler.compile(source) for _ in range(2)]
    return makers, lines


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("minimax_m3", "has no grammar"),
        ("glm4", "the name on a line"),
        ("unknown", "knows no tools"),
        ("llama3_json", '{"name": "...", "parameters": {...}}'),
    ],
)
def test_what_is_not_enforced_is_reported_and_logged_once(family: str, reason: str) -> None:
    it = Family(family)
    source = ConstraintSource(None, strict(["weather"]), Thinking(), False)
    makers, lines = log_of(it, source)
    for maker in makers:
        assert maker is not None
        assert not maker.marked_calls
        assert [one for one in maker.remarks if "`strict`" in one and reason in one]
        assert (maker.make is None) is (family in UNKNOWN)
    (line,) = lines
    assert line["event"] == "tool_calls.strict_not_enforced"
    assert reason in line["reason"]


def test_arguments_that_a_form_cannot_express_leave_calls_free() -> None:
    schema = closed({"when": {"type": "string", "format": "date"}}, ["when"])
    tool = {"name": "at", "parameters": schema, "strict": True}
    use = ToolUse(({"type": "function", "function": tool},), ToolChoice.AUTO)
    it = Family("minimax_m2")
    (maker, _), _ = log_of(it, ConstraintSource(None, use, Thinking(), False))
    assert maker is not None
    assert maker.make is None
    assert "can't express" in maker.remarks[0]
    # JSON has the same mark as Qwen's own form.
    (maker, _), lines = log_of(
        Family("qwen3_coder"), ConstraintSource(None, use, Thinking(), False)
    )
    assert maker is not None
    assert (maker.make is None, maker.remarks, lines) == (False, (), [])


def test_a_template_of_tools_in_a_form_that_is_not_known_leaves_calls_free() -> None:
    it = Family("unknown")
    it.tokenizer.chat_template = "{% for tool in tools %}{{ tool }}{% endfor %}"
    (maker, _), lines = log_of(it, ConstraintSource(None, strict(["weather"]), Thinking(), False))
    assert maker is not None
    assert maker.make is None
    assert "does not know the form" in maker.remarks[0]
    assert len(lines) == 1


def test_calls_that_nobody_wants_strict_are_free() -> None:
    it = Family("json_tools")
    use = replace(required(["weather"]), choice=ToolChoice.AUTO)
    assert it.compiler.compile(ConstraintSource(None, use, Thinking(), False)) is None


def test_bare_calls_are_text_where_strict_ones_are_marked() -> None:
    text = '{"name": "weather", "arguments": {"days": 99}}'
    for marked in (False, True):
        parser = OutputParser(None, False, "json_tools", [TOOLS["weather"]], marked_calls=marked)
        parts = [*parser.add(text), *parser.finish()]
        assert parser.called is not marked
        assert marked is ("".join(p.text for p in parts if p.kind is DeltaKind.CONTENT) == text)
