"""Tools, calls and thinking in prompts, with templates such as the families have."""

import json
import re
from typing import Any

import pytest

from lmx.protocol.messages.data import Thinking, ToolUse
from lmx.protocol.states import ToolChoice
from lmx.worker.engine.values import ModelFacts, PromptSource, ReasoningMarkers
from lmx.worker.formats.families import harmony
from lmx.worker.formats.families.table import marker_ids
from lmx.worker.formats.reasoning import find_markers
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.templates.thinking import EFFORTS
from tests.support.models.tiny_models import CHAT_TEMPLATE, make_tokenizer
from tests.support.rigs.one_renderer import renderer

USER = {"role": "user", "content": "hé"}


def encoder(template: str | None, **facts: Any) -> PromptEncoder:
    facts = {"context_tokens": 1000, "vocabulary_size": 260, **facts}
    return PromptEncoder(
        make_tokenizer(template), ModelFacts(eos_token_ids=frozenset(), **facts), renderer()
    )


def shown(template: str | None, source: PromptSource, **facts: Any) -> str:
    tokens = encoder(template, **facts).encode(source).tokens
    return str(make_tokenizer(template).decode(tokens))


# Thinking

THINKER = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif enable_thinking or effort %}<think>\n{% endif %}{{ reasoning_effort }}"
)
MARKERS = ReasoningMarkers("<think>", "</think>")
PROMPT = "<|user|>hé<|end|><|assistant|>"
NOT_THINKING = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("thinking", "end", "is_open"),
    [
        (Thinking(), "", False),
        (Thinking(enabled=True), "<think>\n", True),
        (Thinking(enabled=False), NOT_THINKING, False),
        (Thinking(effort="high"), "<think>\nhigh", False),
        (Thinking(effort="none", enabled=False), NOT_THINKING + "none", False),
        (Thinking(effort="none", enabled=True), "<think>\nnone", False),
    ],
)
def test_thinking(thinking: Thinking, end: str, is_open: bool) -> None:
    source = PromptSource(
        messages=[USER], thinking=thinking, template_kwargs={"enable_thinking": None}
    )
    template = THINKER.replace(
        "enable_thinking is defined and not", "enable_thinking is false and not"
    )
    assert shown(template, source, reasoning=MARKERS) == PROMPT + end
    encoded = encoder(template, reasoning=MARKERS).encode(source)
    assert encoded.thinking_open is is_open
    assert encoded.thinking_closed is (end == NOT_THINKING)
    assert not encoder(template).encode(source).thinking_open


@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        (Thinking(), "||"),
        (Thinking(enabled=True), "True|True|"),
        (Thinking(enabled=False, budget_tokens=5), "False|False|0"),
        (Thinking(budget_tokens=5), "||5"),
    ],
)
def test_the_words_of_other_templates_for_thinking(thinking: Thinking, said: str) -> None:
    template = "{{ reasoning }}|{{ thinking }}|{{ thinking_budget }}"
    assert shown(template, PromptSource(messages=[USER], thinking=thinking)) == said


def test_reasoning_of_the_history_reaches_the_template() -> None:
    answer = {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}
    text = shown(THINKER, PromptSource(messages=[USER, answer, USER]))
    assert "<|assistant|><think>\nhm\n</think>\n\nHi<|end|>" in text


def test_the_efforts_that_gpt_oss_knows() -> None:
    source = PromptSource(messages=[USER], thinking=Thinking(effort="minimal"))
    assert shown("{{ reasoning_effort }}", source, tool_parser="harmony") == "low"


STRICT = (
    "{% set e = reasoning_effort | default('xhigh') %}{% if e not in ('xhigh', 'medium', 'low') %}"
    "{{ raise_exception('Unexpected reasoning effort ' ~ e) }}{% endif %}"
    "{{ messages[0].content }}:{{ e }}"
)
REFUSES_ALL = "{% if reasoning_effort %}{{ raise_exception('no efforts') }}{% endif %}x"
LAZY = "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}"
NEEDS_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"
    "{{ reasoning_effort }}"
)


@pytest.mark.parametrize(
    ("template", "family", "taken", "heeds"),
    [
        (STRICT, None, ("low", "medium", "xhigh"), True),
        (REFUSES_ALL, None, (), False),
        (LAZY, None, EFFORTS, False),
        ("{{ reasoning_effort }}", None, EFFORTS, True),
        ("{{ reasoning_effort }}", "harmony", ("low", "medium", "high"), True),
        # It can't be tried, and so is believed to take all of them.
        (NEEDS_SYSTEM, None, EFFORTS, False),
        (None, None, EFFORTS, False),
    ],
)
def test_the_efforts_that_a_template_takes(
    template: str | None, family: str | None, taken: tuple[str, ...], heeds: bool
) -> None:
    abilities = encoder(template, tool_parser=family).abilities
    assert (abilities.efforts, abilities.distinguishes_efforts) == (taken, heeds)


@pytest.mark.parametrize(
    ("template", "asked", "said", "ignored"),
    [
        (STRICT, "high", "hé:xhigh", ()),
        (STRICT, "minimal", "hé:low", ()),
        (STRICT, "medium", "hé:medium", ()),
        (REFUSES_ALL, "high", "x", ("output_config.effort",)),
        # An effort means that the model thinks.
        (LAZY, "low", "hé<think>", ()),
    ],
)
def test_an_effort_that_the_template_refuses(
    template: str, asked: str, said: str, ignored: tuple[str, ...]
) -> None:
    thinking = Thinking(asked, param="output_config.effort")
    source = PromptSource(messages=[USER], thinking=thinking)
    assert shown(template, source) == said
    assert encoder(template).encode(source).ignored == ignored


GRANITE = (
    "Write down your thoughts after 'Here is my thought process:' and write your response after "
    "'Here is my response:'"
)


@pytest.mark.parametrize(
    ("tokens", "special", "template", "start"),
    [
        (["<think>", "</think>"], False, "x", "<think>"),
        # Ordinary text.
        (["<think>"], False, "<think>", "<think>"),
        ([], False, "{{ content.split('</think>') }}", "<think>"),
        ([], False, "<seed:think>", "<seed:think>"),
        ([], False, "x", None),
        ([], False, "<|channel|>analysis<|message|>", None),
        ([], False, GRANITE, "Here is my thought process:"),
        ([], False, "Here is my response:", None),
        (["<|inner_prefix|>", "<|inner_suffix|>"], True, "x", "<|inner_prefix|>"),
        (["<|START_THINKING|>", "<|END_THINKING|>"], True, "x", "<|START_THINKING|>"),
        (["[THINK]", "[/THINK]"], True, "x", "[THINK]"),
        (["<|channel|>", "<|end|>", "<|message|>"], True, "analysis", harmony.THINKING),
        (["<|channel|>", "<|message|>"], True, "final", None),
        (["<|message|>", "<|eom|>"], False, "x", "to=self<|message|>"),
        (["<|message|>"], False, "to=self<|message|>", None),
        (["<|message|>", "<|eom|>", "<think>", "</think>"], False, "x", "<think>"),
        (["<|message|>", "<|eom|>", "<think>", "</think>"], False, "to=self", "to=self<|message|>"),
        (["<|channel>", "<channel|>"], True, "<|channel>thought", "<|channel>thought"),
    ],
)
def test_how_a_model_marks_its_thinking(
    tokens: list[str], special: bool, template: str, start: str | None
) -> None:
    tokenizer = make_tokenizer(template)
    tokenizer.add_tokens(tokens, special_tokens=special)
    markers = find_markers(tokenizer)
    assert (markers.start if markers else None) == start
    if markers:
        assert markers.only_first is (template is GRANITE)


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("<think></think>", ("", "")),
        ("<think> '\\n<answer>\\n' '</answer>'", ("<answer>", "</answer>")),
        ("between <think></think> and <response></response>", ("<response>", "</response>")),
        ("<think> <answer>", ("", "")),
        ("<think> <|START_TEXT|> <|END_TEXT|>", ("<|START_TEXT|>", "<|END_TEXT|>")),
    ],
)
def test_how_a_model_marks_the_answer_behind_its_thinking(
    template: str, marks: tuple[str, str]
) -> None:
    found = find_markers(make_tokenizer(template))
    assert found is not None
    assert found.answer == marks


def test_which_tokens_stay_text() -> None:
    tokenizer = make_tokenizer()
    kept = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>"]
    tokenizer.add_tokens([*kept, " ", "name", "<tool_response>", "<|im_end|>"], special_tokens=True)
    ids = marker_ids(tokenizer, "mistral", MARKERS)
    assert sorted(tokenizer.convert_ids_to_tokens(sorted(ids))) == sorted(kept)
    assert sorted(tokenizer.convert_ids_to_tokens(sorted(marker_ids(tokenizer, None, None)))) == [
        "</tool_call>",
        "<tool_call>",
    ]


# Tools

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": "é"}'}}
HISTORY: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0", "content": "3"},
]
QWEN_LIKE = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
LLAMA_LIKE = (
    "{% if tools is not none and tools is defined %}{% for t in tools %}{{ t.function.name }};"
    "{% endfor %}{% endif %}{% for m in messages %}<|{{ m.role }}|>{% if 'tool_calls' in m %}"
    "{% for k, v in m.tool_calls[0].function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
    "{% else %}{{ m.content | trim }}{% endif %}<|end|>{% endfor %}<|assistant|>"
)
MISTRAL_LIKE = (
    "{% if tools %}{{ tools[0].function.name }} {% endif %}{% for m in messages %}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids have 9') }}{% endif %}{{ c.function.arguments + ' ' }}{{ c.id }}"
    "{% endfor %}{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{{ m.content }}{% endfor %}"
)


def with_tools(choice: ToolChoice = ToolChoice.AUTO, **kwargs: Any) -> PromptSource:
    return PromptSource(messages=HISTORY, tool_use=ToolUse((TOOL,), choice, **kwargs))


def test_tools_and_calls_in_a_template_that_knows_them() -> None:
    text = shown(QWEN_LIKE, with_tools())
    assert text.startswith('<|system|>{"type": "function", "function": {"name": "add"')
    assert '<|assistant|><tool_call>{"name": "add", "arguments": {"a": "é"}}</tool_call>' in text
    assert text.endswith("<|tool|>3<|end|><|assistant|>")
    assert shown(LLAMA_LIKE, with_tools()) == (
        "add;<|user|>hé<|end|><|assistant|>a=é<|end|><|tool|>3<|end|><|assistant|>"
    )


def test_tools_are_shown_unless_none_may_be_called() -> None:
    assert "add;" not in shown(LLAMA_LIKE, with_tools(ToolChoice.NONE))
    assert "add;" in shown(LLAMA_LIKE, with_tools(ToolChoice.NONE, described=True))
    assert "add;" in shown(LLAMA_LIKE, with_tools(ToolChoice.REQUIRED, function="add"))


def test_a_thought_a_text_and_a_call_of_gpt_oss_can_be_sent_back() -> None:
    """Its template takes a thought or a text in front of a call."""
    template = (
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
        "{{ raise_exception('Cannot pass both') }}{% endif %}<|{{ m.role }}|>{{ m.content }}"
        "{% if m.tool_calls %}{{ m.thinking }}{{ m.tool_calls[0].function.arguments | tojson }}"
        "{% endif %}{% endfor %}{{ tools | tojson }}"
    )
    user, turn, result = HISTORY
    turn = {**turn, "content": "I add.", "reasoning_content": "hm"}
    source = PromptSource(messages=[user, turn, result], tool_use=ToolUse((TOOL,)))
    text = shown(template, source, tool_parser="harmony")
    assert '<|assistant|>hm\n\nI add.{"a": "é"}' in text


def test_arguments_stay_text_for_a_template_that_wants_text() -> None:
    text = shown(MISTRAL_LIKE, with_tools(), tool_parser="mistral")
    ids = re.findall("[0-9a-f]{9}", text)
    assert text == f'add hé{{"a": "é"}} {ids[0]}={ids[0]}3'


def test_half_of_a_surrogate_pair_in_arguments_is_no_error() -> None:
    for escape, char in ((r"\ud800", "\ufffd"), (r"\ud83d\ude42", "\U0001f642")):
        function = {"name": "f", "arguments": f'{{"x": "a{escape}b"}}'}
        call = {"id": "1", "type": "function", "function": function}
        answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        source = PromptSource(messages=[USER, answer, USER])
        assert f'{{"x": "a{char}b"}}' in shown("{{ messages[1].content }}", source)


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    call = {**CALL, "function": {"name": "add", "arguments": "oops"}}
    messages: list[dict[str, Any]] = [USER, {"role": "assistant", "tool_calls": [call]}]
    assert '"arguments": "oops"' in shown(QWEN_LIKE, PromptSource(messages=messages))


@pytest.mark.parametrize("system", [False, True])
def test_a_template_without_tools_gets_them_in_words(system: bool) -> None:
    first = [{"role": "system", "content": "Be brief."}] if system else []
    source = PromptSource(messages=[*first, *HISTORY], tool_use=ToolUse((TOOL,)))
    text = shown(CHAT_TEMPLATE, source)
    assert text.startswith("<|system|>Be brief.\n\nYou can" if system else "<|system|>You can")
    assert text.count("<|system|>") == 1
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    call = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'
    assert text.endswith(
        f"<|assistant|>{call}<|end|>"
        "<|user|><tool_response>\n3\n</tool_response><|end|><|assistant|>"
    )


def test_calls_of_the_history_need_no_tools() -> None:
    text = shown(CHAT_TEMPLATE, PromptSource(messages=HISTORY))
    assert "<|system|>" not in text
    assert text.count("<tool_call>") == text.count("<tool_response>") == 1


def test_results_that_follow_each_other_are_one_message() -> None:
    result = {"role": "tool", "tool_call_id": "call_0", "content": "4"}
    text = shown(CHAT_TEMPLATE, PromptSource(messages=[*HISTORY, result, USER]))
    assert text.count("<|user|>") == 3
    assert "3\n</tool_response>\n<tool_response>\n4" in text
