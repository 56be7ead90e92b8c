"""gpt-oss's answers: messages in channels."""

import pytest

from lmx.worker.engine.values import ReasoningMarkers
from tests.support.rigs.parsed_output import parse, tool

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
