"""Answers that are several messages with headers: gpt-oss's, in channels, and Muse's."""

import pytest

from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.families.tags import MUSE_MESSAGES
from lmx.worker.formats.parser import OutputParser
from tests.support.fakes.call_writers import FORMS
from tests.support.rigs.parsed_output import join, parse, tool

TOOLS = [tool("now")]
HARMONY_THINK = ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>")
NEXT = "<|start|>assistant"


def harmony_call(name: str, arguments: str) -> str:
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    )


@pytest.mark.parametrize("reasoning", [HARMONY_THINK, None])
@pytest.mark.parametrize(
    ("text", "order", "reasoned", "content"),
    [
        ("<|channel|>final<|message|>Hi<|return|>", ["content"], "", "Hi"),
        (f"<|channel|>analysis<|message|>hm<|end|>{NEXT}<|channel|>final<|message|>Hi",
         ["reasoning", "content"], "hm", "Hi"),
        (f"<|channel|>analysis<|message|>hm<|end|>{NEXT}" + harmony_call("now", "{}"),
         ["reasoning", "call 0"], "hm", ""),
        (f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}" + harmony_call("now", '{"a": 1}'),
         ["content", "call 0"], "", "I look."),
        (" to=functions.now<|channel|>commentary json<|message|>{}", ["call 0"], "", ""),
        (harmony_call("now", "{}") + NEXT + harmony_call("now", ""), ["call 0", "call 1"], "", ""),
        ("<|channel|>analysis<|message|>hm", ["reasoning"], "hm", ""),
        ("just words", ["content"], "", "just words"),
        (harmony_call("nobody", "{}").removesuffix("<|call|>"), ["content"], "",
         harmony_call("nobody", "{}").removesuffix("<|call|>")),
    ],
)  # fmt: skip
def test_harmony(
    reasoning: ReasoningMarkers | None, text: str, order: list[str], reasoned: str, content: str
) -> None:
    for cuts in (None, [], [len(text) // 3]):
        parsed = parse(text, "harmony", tools=TOOLS, reasoning=reasoning, cuts=cuts)
        assert (parsed.order, parsed.reasoning, parsed.content) == (order, reasoned, content)
        assert all(isinstance(value, dict) for _, value in parsed.objects)


def test_harmony_that_begins_in_the_thinking() -> None:
    text = f"hm<|end|>{NEXT}<|channel|>final<|message|>Hi"
    parsed = parse(text, "harmony", reasoning=HARMONY_THINK, thinking_open=True, tools=())
    assert (parsed.reasoning, parsed.content) == ("hm", "Hi")


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", ""])
def test_harmony_that_continues_the_text_of_an_answer(end: str) -> None:
    text = f"and so on.{end}"
    parsed = parse(text, "harmony", reasoning=HARMONY_THINK, in_answer=True, tools=TOOLS)
    assert (parsed.content, parsed.order) == ("and so on.", ["content"])
    assert len(parsed.fragments) == len("and so on."), "It comes as it is written."


@pytest.mark.parametrize("cuts", [None, []])
@pytest.mark.parametrize("between", ["", f"<|end|>{NEXT}"])
def test_a_harmony_call_behind_the_text_that_is_continued(
    between: str, cuts: list[int] | None
) -> None:
    text = f"I look.{between}{harmony_call('now', '{}')}"
    parsed = parse(text, "harmony", in_answer=True, tools=TOOLS, cuts=cuts)
    assert (parsed.content, parsed.objects) == ("I look.", [("now", {})])


MUSE = MUSE_MESSAGES.thinking
CALL = FORMS["atem"]([("now", {})])
THOUGHT = f" to=self<|message|>hm<|eom|>{NEXT}"


@pytest.mark.parametrize(
    ("text", "order", "reasoned", "content"),
    [
        (f"{THOUGHT} to=user<|message|>Hi.<|eot|>", ["reasoning", "content"], "hm", "Hi."),
        (" to=user<|message|>Hi.", ["content"], "", "Hi."),
        (f"{THOUGHT}{THOUGHT} to=now<|message|>{CALL}<|eot|>", ["reasoning", "call 0"], "hmhm", ""),
        (f" to=commentary<|message|>I look.\n<|eom|>{NEXT} to=now<|message|>{CALL}<|eom|>{NEXT}"
         f" to=now.now<|message|>{CALL.replace('now', 'now.now')}",
         ["content", "call 0", "call 1"], "", "I look."),
        (f"{THOUGHT} to=user<|message|>Now: {CALL}", ["reasoning", "content", "call 0"], "hm",
         "Now:"),
        # Cut off in a thought, or in a header.
        (" to=self<|message|>hm", ["reasoning"], "hm", ""),
        (" to=se", [], "", ""),
        (f"{THOUGHT} to=us", ["reasoning"], "hm", ""),
        ("Hi.<|eom|><|start|>assi", ["content"], "", "Hi."),
        (" t", [], "", ""),
        (f"{THOUGHT} t", ["reasoning"], "hm", ""),
        (f"Hi.<|eom|>{NEXT} to", ["content"], "", "Hi."),
        (f"{THOUGHT} to=user<|message|>Hi.<|eom|>{NEXT} to=now.n", ["reasoning", "content"], "hm",
         "Hi."),
        # What has no header, or looks like one.
        ("Hi to=self.", ["content"], "", "Hi to=self."),
        (" to=5 is it", ["content"], "", " to=5 is it"),
        ("to=be", ["content"], "", "to=be"),
        ("to", ["content"], "", "to"),
        ("<", ["content"], "", "<"),
        ("Say <|eom|> to=x", ["content"], "", "Say <|eom|> to=x"),
        ("Say <|eom|> t", ["content"], "", "Say <|eom|> t"),
        (" to=user<|message|>Each turn begins with <|start|> and then the name of the role",
         ["content"], "", "Each turn begins with <|start|> and then the name of the role"),
        (" to=user<|message|>It is <|start|>user to=x", ["content"], "",
         "It is <|start|>user to=x"),
        (" to=user<|message|>The recipient is to=self<|message|>.", ["content"], "",
         "The recipient is to=self<|message|>."),
        (f"{THOUGHT} to=user<|message|>A <|start|>? B", ["reasoning", "content"], "hm",
         "A <|start|>? B"),
        (" to=user<|message|>The `<|eom|>` and <|eom|>.", ["content"], "",
         "The `<|eom|>` and <|eom|>."),
        (" to=user<|message|>", [], "", ""),
    ],
)  # fmt: skip
def test_muse(text: str, order: list[str], reasoned: str, content: str) -> None:
    for cuts in (None, [], *([place] for place in range(1, len(text)))):
        parsed = parse(text, "atem", tools=TOOLS, reasoning=MUSE, cuts=cuts)
        assert (parsed.order, parsed.reasoning, parsed.content) == (order, reasoned, content)
        assert parsed.objects == [("now", {})] * sum(kind.startswith("call") for kind in order)


def test_what_can_be_no_header_of_muse_is_not_held_back() -> None:
    one = OutputParser(MUSE, False, "atem", ())
    assert join(one.add(" to=user<|message|>Begin with <|start|> an")).content == (
        "Begin with <|start|> an"
    )
    assert not one.undecided


def test_muse_that_begins_in_the_thinking() -> None:
    text = f"hm<|eom|>{NEXT} to=user<|message|>Hi"
    parsed = parse(text, None, reasoning=MUSE, thinking_open=True, tools=())
    assert (parsed.reasoning, parsed.content) == ("hm", "Hi")


@pytest.mark.parametrize("only", [None, "now"])
@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("harmony", harmony_call("now", "")[: -len("<|call|>")], ""),
        ("harmony", "<|channel|>commentary to=functions.n", ""),
        ("atem", " to=now<|message|>", ""),
        ("atem", f"{NEXT} to=n", ""),
        ("atem", " to", ""),
        ("atem", f"{NEXT} to=now<|message|><atem:function_ca", "<atem:function_ca"),
    ],
)
def test_a_header_that_is_cut_off_where_a_call_must_be_made(
    name: str, text: str, shown: str, only: str | None
) -> None:
    one = OutputParser(None, False, name, TOOLS, calls_only=True, only=only)
    parsed = join([part for char in text for part in one.add(char)] + one.finish())
    if only is None:
        assert (parsed.content, parsed.calls) == (shown, [])
    else:
        assert (parsed.content, parsed.calls) == ("", [(only, "")])
