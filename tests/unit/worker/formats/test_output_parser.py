"""Content, reasoning and calls in JSON, told apart in text that arrives in pieces."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.states import DeltaKind
from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.families import harmony
from lmx.worker.formats.parser import OutputParser
from lmx.worker.formats.reasoning import FORMS
from tests.support.rigs.budgets import examples
from tests.support.rigs.parsed_output import THINK, TOOLS, join, parse

PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
CALL = f"<tool_call>\n{PARIS}\n</tool_call>"
WEATHER = ("get_weather", {"city": "Paris"})


def parser(**kwargs: Any) -> OutputParser:
    return OutputParser(**{
        "reasoning": THINK, "thinking_open": False, "tool_parser": None, "tools": TOOLS, **kwargs
    })  # fmt: skip


# Reasoning


@pytest.mark.parametrize(
    ("text", "thinking_open", "reasoning", "content"),
    [
        ("Hi", False, "", "Hi"),
        ("<think>\nhm\n</think>\n\nHi\n", False, "hm", "Hi\n"),
        ("\nhm\n\nso\n</think>\n\n  Hi", True, "hm\n\nso", "  Hi"),
        ("<think>hm</think>Hi", True, "hm", "Hi"),
        ("\n<think>\n\n</think>\n\nHi", False, "", "Hi"),
        ("<think>\nhm\n", False, "hm\n", ""),
        ("hm <thin", True, "hm <thin", ""),
        ("Hi</think> you", False, "", "Hi you"),
        ("a <think>b</think>\nc", False, "b", "ac"),
        ("a < b <thinker>", False, "", "a < b <thinker>"),
        ("", True, "", ""),
        ("\n \n", False, "", "\n \n"),
    ],
)
def test_reasoning(text: str, thinking_open: bool, reasoning: str, content: str) -> None:
    parsed = parse(text, thinking_open=thinking_open)
    assert (parsed.reasoning, parsed.content) == (reasoning, content)
    assert not parsed.calls


WORDS = ReasoningMarkers("Here is my thought process:", "Here is my response:", only_first=True)
ANSWERS = replace(THINK, answer=("<answer>", "</answer>"))
TOKENS = replace(THINK, answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"))


@pytest.mark.parametrize(
    ("marks", "text", "reasoning", "content"),
    [
        (WORDS, "Here is my thought process:\nhm\nHere is my response:\nHi", "hm", "Hi"),
        (WORDS, "Here is my thought process: hm", " hm", ""),
        (WORDS, "Hi. Here is my response: x", "", "Hi. Here is my response: x"),
        (WORDS, "A. Here is my thought process: x", "", "A. Here is my thought process: x"),
        (WORDS, "Here is my thesis", "", "Here is my thesis"),
        (ANSWERS, "<think>\nhm\n</think>\n<answer>\nHi\n</answer>", "hm", "Hi"),
        (ANSWERS, "<think>hm</think><answer>Hi</answer>\n\n", "hm", "Hi"),
        (ANSWERS, "<think>hm</think>\n\nHi</answer>", "hm", "Hi</answer>"),
        (ANSWERS, "<think>hm</think>Hi <answer>", "hm", "Hi <answer>"),
        (ANSWERS, "<answer>Hi</answer>", "", "<answer>Hi</answer>"),
        (ANSWERS, "<think></think><answer>a</answer> b", "", "a</answer> b"),
        (ANSWERS, "<think></think><answer>a</answer>b</answer>", "", "a</answer>b"),
        (ANSWERS, "<think></think><answer>a </ans", "", "a </ans"),
        (TOKENS, "<think>hm</think><|START_RESPONSE|>Hi<|END_RESPONSE|>", "hm", "Hi"),
        (TOKENS, "<|START_RESPONSE|>\nHi<|END_RESPONSE|>\n", "", "Hi"),
        (TOKENS, "Hi <|START_RESPONSE|>", "", "Hi <|START_RESPONSE|>"),
    ],
)
def test_marks_that_are_words_or_stand_around_the_answer(
    marks: ReasoningMarkers, text: str, reasoning: str, content: str
) -> None:
    for tools in (TOOLS, []):
        for cuts in (None, [], [len(text) // 2]):
            parsed = parse(text, reasoning=marks, tools=tools, cuts=cuts)
            assert (parsed.reasoning, parsed.content) == (reasoning, content)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.start)
def test_every_family_s_thinking_is_distinguished_from_its_answer(form: Any) -> None:
    marks = ReasoningMarkers(form.start, form.end, form.only_first)
    if marks.start == harmony.THINKING:
        # Whole answers have a form of their own.
        return
    text = f"{form.start}\nhm {form.end[:-1]} hm\n{form.end}\n\nHi\n"
    for place in range(len(text)):
        parsed = parse(text, reasoning=marks, cuts=[place])
        assert (parsed.reasoning, parsed.content) == (f"hm {form.end[:-1]} hm", "Hi\n")
    opened = parse(text.removeprefix(form.start), reasoning=marks, thinking_open=True)
    assert (opened.reasoning, opened.content) == (parsed.reasoning, parsed.content)


def test_a_call_inside_the_marks_of_the_answer() -> None:
    text = f"<think>hm</think>\n<answer>\nI look.\n{CALL}\n</answer>"
    parsed = parse(text, reasoning=ANSWERS)
    assert (parsed.reasoning, parsed.content, parsed.objects) == ("hm", "I look.", [WEATHER])


def test_text_of_a_model_that_does_not_think_is_left_alone() -> None:
    text = "\n<think>\n</think>\n<tool_call>{} "
    parsed = parse(text, reasoning=None, tools=(), thinking_open=True)
    assert (parsed.content, parsed.order) == (text, ["content"])


def test_without_tools_nothing_is_a_call() -> None:
    assert parse(f"<think>x</think>{CALL}", tools=()).content == CALL
    assert parse(PARIS, tools=()).content == PARIS


def test_a_call_in_the_thinking_is_a_thought() -> None:
    parsed = parse(f"<think>Perhaps {CALL}?</think>{CALL}")
    assert parsed.reasoning == f"Perhaps {CALL}?"
    assert parsed.objects == [WEATHER]


def test_kind_is_where_the_text_is() -> None:
    one = parser()
    kinds = []
    for piece in ("<think>", "a", "</think>", "b", "<tool_call>", PARIS, "</tool_call>", "c"):
        one.add(piece)
        kinds.append(str(one.kind))
    assert kinds == ["reasoning"] * 2 + ["content"] * 2 + ["tool_call"] * 2 + ["content"] * 2


def test_kind_before_the_first_text() -> None:
    assert parser(thinking_open=True).kind is DeltaKind.REASONING
    assert parser().kind is DeltaKind.CONTENT


# Calls between marks


def test_a_call_with_text_around() -> None:
    parsed = parse(f"<think>\nhm\n</think>\n\nI look.\n\n{CALL}\n\nDone.\n")
    assert parsed.order == ["reasoning", "content", "call 0", "content"]
    assert parsed.content == "I look.\n\nDone.\n"
    assert parsed.objects == [WEATHER]


def test_white_space_around_calls_is_dropped() -> None:
    parsed = parse(f"\n{CALL}\n{CALL} \n\n")
    assert (parsed.content, parsed.objects) == ("", [WEATHER, WEATHER])
    assert parse(f"{CALL}\n\nDone").content == "Done"


def test_arguments_come_as_they_are_made() -> None:
    one = parser()
    one.add('<tool_call>{"name": "write-file", "arguments": ')
    fragments = [one.add(piece) for piece in ('{"text": "', "ab", 'c\\n"', ', "tags": [1', "]}")]
    first = fragments[0][0]
    assert first.call is not None
    assert (first.call.index, first.call.name) == (0, "write-file")
    texts = ['{"text": "', "ab", "c\\n", '", "tags": [', "1]}"]
    assert [part.text for parts in fragments for part in parts] == texts
    assert one.add("}</tool_call>") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"type": "function", "function": ' + PARIS + "}", [WEATHER]),
        ('{"id": 3, "name": "now"}', [("now", {})]),
        ('{"name": "now", "arguments": null}', [("now", {})]),
        (f"[{PARIS}, {PARIS}]", [WEATHER, WEATHER]),
        (f"{PARIS}\n{PARIS}", [WEATHER, WEATHER]),
        ('{"name": "now", "arguments": {}, "why": [1, {}]}', [("now", {})]),
        # A tool without parameters; one whose parameters may all be left out.
        ('{"name": "now", "why": "It is late.", "args": {}}', [("now", {})]),
        ('{"type": "function", "name": "get_weather"}', [("get_weather", {})]),
        ('{"function": {"name": "get_weather"}, "arguments": {"city": "Paris"}}', [WEATHER]),
    ],
)
def test_what_models_make_of_the_form(text: str, expected: list[Any]) -> None:
    parsed = parse(f"<tool_call>{text}</tool_call>", "json_tools")
    assert (parsed.objects, parsed.content) == (expected, "")


def test_a_call_without_its_end_mark_is_one() -> None:
    assert parse(CALL.removesuffix("\n</tool_call>")).objects == [WEATHER]
    parsed = parse(CALL.removesuffix("</tool_call>") + "It is warm.</tool_call>")
    assert (parsed.objects, parsed.content) == ([WEATHER], "It is warm.")


def test_mistakes_in_strings_that_are_mended() -> None:
    text = '{"name": "now", "arguments": {"a": "1\n2\t", "b": "\\d+\\\'", "c": "\\u12x\\"\\u00e9"}}'
    parsed = parse(f"<tool_call>{text}</tool_call>")
    assert parsed.objects == [("now", {"a": "1\n2\t", "b": "\\d+'", "c": '\\u12x"é'})]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "nobody", "arguments": {"city": "x"}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": ["x"]}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{name: "get_weather"}</tool_call>',
        '<tool_call>{"name" "get_weather"}</tool_call>',
        "<tool_call>get_weather(city='x')</tool_call>",
        "<tool_call></tool_call>",
        # What may be its arguments must not vanish.
        '<tool_call>{"name": "get_weather", "args": {"city": "x"}}</tool_call>',
        '<tool_call>{"input": {"city": "x"}, "name": "get_weather"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments ": {"city": "x"}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": null, "city": "x"}</tool_call>',
        '<tool_call>{"function": {"name": "get_weather", "input": {"city": "x"}}}</tool_call>',
        '<tool_call>{"function": {"name": "get_weather"}, "input": {"city": "x"}}</tool_call>',
        '<tool_call>{"arguments": {"a": ' + "[" * 300 + '}, "name": "now"}</tool_call>',
        '<tool_call>{"arguments": {"a": ' + "9" * 5000 + '}, "name": "now"}</tool_call>',
        "a <tool_cal",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    parsed = parse(text)
    assert (parsed.content, parsed.calls) == (text, [])
    parsed = parse(f"So:\n\n{text} and\n{text}")
    assert (parsed.content, parsed.calls) == (f"So:\n\n{text} and\n{text}", [])


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>\n{", '<tool_call>{"name": "get_weather", "argum']
)
def test_a_call_that_is_cut_off_leaks_nothing(text: str) -> None:
    parsed = parse(f"Let me see. {text}")
    assert (parsed.content.rstrip(), parsed.calls) == ("Let me see.", [])


def test_a_good_call_after_a_bad_one() -> None:
    bad = '<tool_call>{"name": "nobody"}</tool_call>'
    parsed = parse(f"{bad}\n{CALL}\n{bad}")
    assert (parsed.content, parsed.objects) == (f"{bad}\n{bad}", [WEATHER])
    assert parsed.order == ["content", "call 0", "content"]
    assert parse(f'<tool_call>{{"name": x <tool_call>{PARIS}</tool_call>').objects == [WEATHER]


@pytest.mark.parametrize(
    ("arguments", "closed", "rest"),
    [
        ('{"a": tru, "b": 1}}', {}, '"a": tru, "b": 1}}'),
        ('{"a": 1, "b": [2, {"c": "d"; 3]}', {"a": 1, "b": [2, {"c": "d"}]}, "; 3]}"),
        ('{"a": {"b": 1}, c}', {"a": {"b": 1}}, ", c}"),
        ('{"a": "x"\n"b": 2}', {"a": "x"}, '"b": 2}'),
    ],
)
def test_arguments_that_go_wrong_are_closed_and_the_rest_is_content(
    arguments: str, closed: dict[str, Any], rest: str
) -> None:
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}</tool_call> after'
    parsed = parse(text)
    assert (parsed.objects, parsed.content) == ([("now", closed)], f"{rest} after")
    assert parse(text, cuts=[]).content == parsed.content


def test_one_call_is_enough_where_calls_are_not_parallel() -> None:
    one = parser(parallel=False)
    one.add(CALL[:-1])
    assert not one.satisfied
    one.add(CALL[-1])
    assert one.satisfied
    parsed = parse(f"Hi {CALL}{CALL} more", parallel=False)
    assert (parsed.content, parsed.objects) == ("Hi", [WEATHER])
    parsed = parse(f"[{PARIS}, {PARIS}] more", parallel=False)
    assert (parsed.content, parsed.objects) == ("", [WEATHER])
    assert not parser().satisfied


# Bare and fenced JSON


@pytest.mark.parametrize("tool_parser", [None, "json_tools"])
@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (PARIS, 1, ""),
        (f"\n{PARIS}\n", 1, ""),
        (f"<think>x</think>\n\n{PARIS}", 1, ""),
        (f"[{PARIS}, {PARIS}]", 2, ""),
        (f"{PARIS}; {PARIS}", 2, ""),
        (f"```json\n{PARIS}\n```", 1, ""),
        (f"```\n[{PARIS},\n{PARIS}]\n```\nDone", 2, "Done"),
        (f"{PARIS}\n\nThat is it.", 1, "That is it."),
        (f"```json\n{PARIS}", 1, ""),
        (f"{PARIS} {CALL}", 2, ""),
        # What stands behind the arguments belongs to the call.
        (f'{PARIS[:-1]}, "description": "x"}}', 1, ""),
        (f'[{PARIS[:-1]}, "why": ["}}"]}}, {PARIS}]\nSo.', 2, "So."),
    ],
)
def test_bare_calls(tool_parser: str | None, text: str, calls: int, content: str) -> None:
    parsed = parse(text, tool_parser)
    assert (parsed.objects, parsed.content) == ([WEATHER] * calls, content)


@pytest.mark.parametrize(
    "text",
    [
        f"Like so: {PARIS}",
        f"Like so:\n```json\n{PARIS}\n```",
        f"```python\n{PARIS}\n```",
        f"``{PARIS}``",
        '{"name": "get_weather"}',
        '{"name": "Ann", "arguments": {}}',
        '{"city": "Paris", "name": "get_weather", "arguments": {}}',
        '{"name": "get_weather", "city": "Paris", "arguments": {}}',
        '{"answer": {"name": "get_weather", "arguments": {}}}',
        '["name", "get_weather"]',
        '{"name": "get_weather", "arguments": ',
        "[1] says",
        "{",
        "```",
        "```json\nnull\n```",
        "[]",
        "  {} ",
    ],
)
def test_other_json_is_content(text: str) -> None:
    parsed = parse(text)
    assert (parsed.content, parsed.calls) == (text, [])


def test_bare_json_is_released_as_soon_as_it_is_no_call() -> None:
    one = parser()
    assert one.add('{"na') == []
    (part,) = one.add('me": "Ann"')
    assert part.text == '{"name": "Ann"'


def test_bare_json_is_for_models_whose_form_it_is() -> None:
    assert parse(PARIS, "gemma4").content == PARIS
    assert parse(CALL, "gemma4").objects == [WEATHER]


# However it is cut

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
PIECES = st.sampled_from([
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "tool", "\n\n", " ", "é🙂", CALL,
    PARIS, "```json\n", "```", "[", "]", "{", "}", ",", '"', "\\", '{"name": "now", "arguments": ',
    "1", "true", "<tool", "_call>", "Hi", '{"name": "x"}', "[TOOL_CALLS]", "now[ARGS]",
    '{"name": "get_weather", "args": {}}', f'{PARIS[:-1]}, "why": 1}}',
])  # fmt: skip


@given(st.dictionaries(st.text(max_size=6), VALUES), st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
def test_arguments_are_what_the_model_wrote(
    arguments: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = f'Hi\n<tool_call>{{"name": "now", "arguments": {written}}}</tool_call> ok'
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    parsed = parse(text, cuts=cuts)
    assert (parsed.calls, parsed.content) == ([("now", written)], "Hi ok")


@given(
    st.lists(PIECES, max_size=10).map("".join),
    st.sampled_from([None, "json_tools", "mistral"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
@settings(max_examples=examples(100), deadline=None)
def test_cuts_make_no_difference(
    text: str, tool_parser: str | None, thinking_open: bool, parallel: bool, data: st.DataObject
) -> None:
    def run(cuts: list[int] | None) -> Any:
        parsed = parse(text, tool_parser, thinking_open=thinking_open, parallel=parallel, cuts=cuts)
        return parsed.order, parsed.content, parsed.reasoning, parsed.calls

    whole = run([])
    assert run(None) == whole
    assert run(data.draw(st.lists(st.integers(0, len(text)), max_size=8))) == whole


@pytest.mark.parametrize("only", [None, "get_weather"])
@pytest.mark.parametrize("piece_chars", [1, 1000])
def test_where_only_calls_are_wanted_nothing_of_a_call_that_is_cut_off_is_lost(
    only: str | None, piece_chars: int
) -> None:
    thought, begin = "<think>hm</think>", len("<think>hm</think>\n")
    text = f"{thought}\n{CALL}\n"
    # What begins like a thought may also be the beginning of a call.
    for length in (0, *range(len("<think>"), len(text) + 1)):
        one = parser(calls_only=True, only=only)
        made = [
            part
            for start in range(0, length, piece_chars)
            for part in one.add(text[start : min(length, start + piece_chars)])
        ]
        parsed = join([*made, *one.finish()])
        if length <= begin:
            assert (parsed.content, parsed.calls) == ("", []), "it thinks"
        elif parsed.calls:
            assert (parsed.content, parsed.calls[0][0]) == ("", "get_weather")
        else:
            # Which of several tools it is to be is not known.
            assert only is None and parsed.content.strip() == text[begin:length].strip()
    assert parsed.objects == [WEATHER]
    assert parser(calls_only=True).kind is DeltaKind.TOOL_CALL


# Marks of thinking where they are text, and calls in a thought


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>hm</think>\n\nSay <think> and </think> so.", "hm", "Say <think> and </think> so."),
        ("First.<think>hm</think>Then.", "hm", "First.Then."),
        ("<think>It writes `</think>` last.</think>Yes.", "It writes `</think>` last.", "Yes."),
        ('<think>a "</think>" b</think>c', 'a "</think>" b', "c"),
        ("<think>a `</think>b", "a `", "b"),
        ("</think>Hi", "", "Hi"),
        ('Use `text.split("</think>")[1]`.', "", 'Use `text.split("</think>")[1]`.'),
        ('if "<think>" in text:\n    pass', "", 'if "<think>" in text:\n    pass'),
        ("The `<think>` tag, then `</think>`.", "", "The `<think>` tag, then `</think>`."),
        ('He said "hm"<think>a</think>', "a", 'He said "hm"'),
        ('Say "<think>a</think>b', "a", 'Say "b'),
    ],
)
def test_marks_of_thinking_in_an_answer_are_text(text: str, reasoning: str, content: str) -> None:
    for cuts in (None, [], [len(text) // 2]):
        for tools in (TOOLS, ()):
            parsed = parse(text, cuts=cuts, tools=tools)
            assert (parsed.reasoning, parsed.content) == (reasoning, content)


def test_marks_of_thinking_behind_a_prompt_that_has_ended_it_are_text() -> None:
    for text in ("Models use <think> tags.", "It ends with </think> here."):
        for pieces in ([text], list(text)):
            one = parser(thinking_closed=True)
            parsed = join([part for piece in pieces for part in one.add(piece)] + one.finish())
            assert (parsed.reasoning, parsed.content) == ("", text)
    one = parser(thinking_closed=True)
    parsed = join([*one.add("<think>hm</think>Hi"), *one.finish()])
    assert (parsed.reasoning, parsed.content) == ("hm", "Hi"), "It thinks nevertheless."


@pytest.mark.parametrize(
    "answer",
    [
        '{"summary": "Models use <think> tags, then answer.", "ok": true}',
        '{"summary": "ends with </think> here"}',
    ],
)
@pytest.mark.parametrize("thought", ["", "<think>hm</think>"])
def test_marks_of_thinking_in_an_enforced_answer_are_text(thought: str, answer: str) -> None:
    for tools in (TOOLS, ()):
        one = parser(either=True, tools=tools)
        parsed = join([part for piece in thought + answer for part in one.add(piece)])
        parsed = join([*parsed.fragments, *one.finish()])
        assert (parsed.content, parsed.reasoning) == (answer, "hm" if thought else "")


def test_a_thought_may_follow_a_call() -> None:
    parsed = parse(f"<think>a</think>So:{CALL}<think>b</think>Done.")
    assert (parsed.reasoning, parsed.content, parsed.objects) == ("ab", "So:Done.", [WEATHER])


@pytest.mark.parametrize(
    ("text", "reasoning", "calls"),
    [
        (f"<think>I look.\n{CALL}", "I look.", [WEATHER]),
        (f"<think>I look.\n{CALL}\n{CALL}\n", "I look.", [WEATHER, WEATHER]),
        # A draft: the thought goes on, or has an end.
        (f"<think>I look.\n{CALL}\nNo.", f"I look.\n{CALL}\nNo.", []),
        (f"<think>I look.\n{CALL}</think>", f"I look.\n{CALL}", []),
        (f"<think>I look.\n{CALL}\nNo.\n{CALL}", f"I look.\n{CALL}\nNo.", [WEATHER]),
        # One that is cut off, or that names no tool.
        (f"<think>I look.\n{CALL[:-20]}", f"I look.\n{CALL[:-20]}", []),
        ("<think><tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    ],
)
def test_calls_at_the_end_of_a_thought_without_an_end(
    text: str, reasoning: str, calls: list[Any]
) -> None:
    for cuts in (None, [], [len(text) // 2], list(range(5, len(text), 7))):
        parsed = parse(text, cuts=cuts)
        assert (parsed.reasoning.rstrip(), parsed.objects) == (reasoning, calls)
        assert parsed.content == ""
    thought = text.removeprefix("<think>").removesuffix("</think>")
    assert parse(text, open_calls=False).reasoning == thought


@pytest.mark.parametrize(
    ("thought", "answer"),
    [
        ("I mean `x`", "`x` is it."),
        ('I answer "Paris"', '"Paris" is the capital.'),
        ("```python\nx\n```", "```python\nx\n```"),
        ("It's 'a', isn't it? So 'a'", "'a' it is."),
    ],
)
def test_a_quote_that_is_closed_keeps_no_thought_open(thought: str, answer: str) -> None:
    text = f"<think>{thought}</think>{answer}"
    for cuts in ([], list(range(1, len(text)))):
        parsed = parse(text, "json_tools", cuts=cuts)
        assert (parsed.reasoning, parsed.content) == (thought, answer)


def test_an_enforced_answer_may_begin_with_the_quote_that_a_thought_ends_with() -> None:
    text = """<think>it's 5"</think>"Quoted\""""
    for piece_chars in (1, 3, len(text)):
        one = parser(either=True)
        pieces = [text[at : at + piece_chars] for at in range(0, len(text), piece_chars)]
        parsed = join([part for piece in pieces for part in one.add(piece)] + one.finish())
        assert (parsed.reasoning, parsed.content) == ("it's 5\"", '"Quoted"')


@pytest.mark.parametrize(
    "thought",
    [
        "The tag ``</think>`` ends it",
        "The users' tag is '</think>' here",
        'a 6" pipe and "</think>" too',
        "the `</think>` of it",
        "'a' and then '</think>' and it's well",
        'x "</think>".',
    ],
)
def test_a_marker_in_quotes_is_a_part_of_the_thought(thought: str) -> None:
    parsed = parse(f"<think>{thought}</think>So.", "json_tools")
    assert (parsed.reasoning, parsed.content) == (thought, "So.")
