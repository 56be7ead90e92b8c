"""Tool calls as each family writes them, and gpt-oss's channels."""

import json
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_output import parse, tool

from lmx.worker.engine import ReasoningMarkers
from lmx.worker.family_parsers import family_parser, family_registry
from lmx.worker.output_parser import OutputParser
from lmx.worker.tool_calls import HARMONY, call_forms, parser_for

Calls = list[tuple[str, dict[str, Any]]]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def json_tools(calls: Calls) -> str:
    return "\n".join(
        f"<tool_call>\n{dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    )


def mistral(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}" for name, arguments in calls)


def mistral_array(calls: Calls) -> str:
    return "[TOOL_CALLS] " + dumps([{"name": name, "arguments": args} for name, args in calls])


def mistral_ids(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]aB3[ARGS]{dumps(args)}" for name, args in calls)


def kimi(calls: Calls) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        f"{dumps(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def cohere(calls: Calls) -> str:
    listed = [
        {"tool_call_id": str(index), "tool_name": name, "parameters": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    return f"<|START_ACTION|>{json.dumps(listed, indent=4)}<|END_ACTION|>"


def qwen3_coder(calls: Calls) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(
            f"<parameter={key}>\n{text_of(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def tagged(prefix: str) -> Callable[[Calls], str]:
    def render(calls: Calls) -> str:
        def one(name: str, arguments: dict[str, Any]) -> str:
            inner = "".join(
                f"<{prefix}arg_key>{key}</{prefix}arg_key>\n"
                f"<{prefix}arg_value>{text_of(value)}</{prefix}arg_value>\n"
                for key, value in arguments.items()
            )
            return f"<{prefix}tool_call>{name}\n{inner}</{prefix}tool_call>"

        return "\n".join(one(*call) for call in calls)

    return render


def minimax_m2(calls: Calls) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(
            f'<parameter name="{key}">{text_of(value)}</parameter>\n'
            for key, value in arguments.items()
        )
        return f'<invoke name="{name}">\n{inner}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(one(*c) for c in calls)}</minimax:tool_call>"


def minimax_m3(calls: Calls) -> str:
    mark = "]<]minimax[>["

    def node(tag: str, value: Any) -> str:
        if isinstance(value, dict):
            inner = "".join(node(key, item) for key, item in value.items())
        elif isinstance(value, list):
            inner = "".join(node("item", item) for item in value)
        else:
            inner = text_of(value)
        return f"{mark}<{tag}>{inner}{mark}</{tag}>"

    inner = "".join(
        f'{mark}<invoke name="{name}">'
        + "".join(node(key, value) for key, value in arguments.items())
        + f"{mark}</invoke>"
        for name, arguments in calls
    )
    return f"{mark}<tool_call>{inner}{mark}</tool_call>"


def minicpm5(calls: Calls) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(
            f'<param name="{key}">{escape(text_of(value))}</param>'
            for key, value in arguments.items()
        )
        return f'<function name="{name}">{inner}</function>'

    return "\n".join(one(*call) for call in calls)


def gemma4(calls: Calls) -> str:
    def value_text(value: Any) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, list):
            return f"[{','.join(value_text(item) for item in value)}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{value_text(item)}' for key, item in value.items())}}}"
        return dumps(value)

    return "".join(f"<|tool_call>call:{name}{value_text(args)}<tool_call|>" for name, args in calls)


def pythonic(calls: Calls) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    return f"<|tool_call_start|>[{', '.join(one(*c) for c in calls)}]<|tool_call_end|>"


def atem(calls: Calls) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(
            f'<atem:parameter name="{key}">{text_of(value)}</atem:parameter>'
            for key, value in arguments.items()
        )
        return f'<atem:invoke name="{name}">{inner}</atem:invoke>'

    return f"<atem:function_calls>{''.join(one(*c) for c in calls)}</atem:function_calls>"


WRITERS: list[tuple[str, Callable[[Calls], str]]] = [
    ("json_tools", json_tools),
    ("mistral", mistral),
    ("mistral", mistral_array),
    ("mistral", mistral_ids),
    ("kimi_k2", kimi),
    ("cohere2_moe", cohere),
    ("qwen3_coder", qwen3_coder),
    ("qwen3_coder", json_tools),
    ("glm47", tagged("")),
    ("glm47", json_tools),
    ("longcat", tagged("longcat_")),
    ("minimax_m2", minimax_m2),
    ("minimax_m3", minimax_m3),
    ("minicpm5", minicpm5),
    ("gemma4", gemma4),
    ("gemma4", json_tools),
    ("pythonic", pythonic),
    ("atem", atem),
]
families = pytest.mark.parametrize(
    ("name", "write"), WRITERS, ids=[f"{n}-{w.__name__}" for n, w in WRITERS]
)

TOOLS = [
    tool("save", path="string", text="string", size="integer", tags="array", options="object"),
    tool("now"),
]
TRICKY: dict[str, Any] = {
    "path": "a b/é🙂.py",
    "text": 'def f(x):\n    return {"a": [x, "}"]}  # <b> & \'c\' \\d 日本',
    "size": 3,
    "tags": ["x", "y{}"],
    "options": {"deep": {"er": [True, None, 1.5]}},
}
SAVE = ("save", TRICKY)
NOW: tuple[str, dict[str, Any]] = ("now", {})


def test_every_family_of_the_registry_is_known() -> None:
    names = {spec.name for spec in family_registry().SPECS}
    assert names == {name for name, _ in WRITERS} | {HARMONY}
    for name in names - {HARMONY}:
        assert call_forms(name)
        assert family_parser(name).tool_call_start


@families
def test_calls_with_text_around(name: str, write: Callable[[Calls], str]) -> None:
    text = f"<think>\nhm\n</think>\n\nI save.\n{write([SAVE, NOW, SAVE])}"
    parsed = parse(text, name, tools=TOOLS)
    assert parsed.objects == [SAVE, NOW, SAVE]
    assert (parsed.reasoning, parsed.content) == ("hm", "I save.")
    for cuts in ([], [len(text) // 2], list(range(3, len(text), 7))):
        whole = parse(text, name, tools=TOOLS, cuts=cuts)
        assert (whole.calls, whole.content) == (parsed.calls, parsed.content)


@families
def test_text_after_a_call(name: str, write: Callable[[Calls], str]) -> None:
    parsed = parse(write([NOW]) + "\n\nDone", name, tools=TOOLS)
    assert (parsed.objects, parsed.content) == ([NOW], "Done")
    parsed = parse(f"One {write([NOW])} two", name, tools=TOOLS)
    assert parsed.content.split() == ["One", "two"]


@families
def test_a_call_of_an_unknown_tool_is_content(name: str, write: Callable[[Calls], str]) -> None:
    text = write([("nobody", {"path": "x"})])
    parsed = parse(f"Hi {text} you", name, tools=TOOLS)
    assert (parsed.content, parsed.calls) == (f"Hi {text} you", [])
    parsed = parse(text + write([NOW]), name, tools=TOOLS)
    assert (parsed.content, parsed.objects) == (text, [NOW])


@families
def test_a_malformed_call_is_content(name: str, write: Callable[[Calls], str]) -> None:
    form = call_forms(name)[0]
    for text in (f"{form.start}:-){form.end}", form.start, f"{form.start}n"):
        parsed = parse(f"Hi {text}", name, tools=TOOLS)
        assert (parsed.content, parsed.calls) == (f"Hi {text}", [])


@families
def test_a_call_that_is_cut_off_is_never_a_whole_one(
    name: str, write: Callable[[Calls], str]
) -> None:
    text = write([SAVE])
    for length in range(1, len(text), 5):
        parsed = parse(text[:length], name, tools=TOOLS, cuts=[])
        for _, arguments in parsed.calls:
            try:
                assert json.loads(arguments) == TRICKY
            except ValueError:
                assert dumps(TRICKY).startswith(arguments) or name == "cohere2_moe"
        assert parsed.calls or parsed.content == text[:length]


@families
def test_no_tools_no_calls(name: str, write: Callable[[Calls], str]) -> None:
    text = write([NOW])
    assert parse(text, name, tools=()).content == text


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "longcat", "minimax_m2"])
@given(
    # Without the tags themselves: no family has a way to write those.
    st.dictionaries(st.sampled_from(["path", "size", "tags", "options", "else"]), st.text()),
    st.data(),
)
@settings(max_examples=60)
def test_parameters_mean_what_they_mean_to_the_family(
    name: str, arguments: dict[str, str], data: st.DataObject
) -> None:
    write = next(write for family, write in WRITERS if family == name)
    text = write([("save", arguments)])
    form = call_forms(name)[0]
    body = text.removeprefix(form.start).removesuffix(form.end).strip()
    try:
        expected = dumps(family_parser(name).parse_tool_call(body, TOOLS))
        assert "NaN" not in expected
        assert "Infinity" not in expected
    except (AssertionError, AttributeError, ValueError, SyntaxError, TypeError):
        # The whole call fails for one parameter; here that parameter stays text.
        return
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    parsed = parse(text, name, tools=TOOLS, cuts=cuts, reasoning=None)
    assert parsed.objects == [("save", json.loads(expected)["arguments"])]


def test_a_parameter_that_is_not_of_its_type_stays_text() -> None:
    parsed = parse(
        qwen3_coder([("save", {"size": "many", "path": "x"})]), "qwen3_coder", tools=TOOLS
    )
    assert parsed.objects == [("save", {"size": "many", "path": "x"})]


def test_strings_stream_out_of_tags() -> None:
    one = OutputParser(None, False, "qwen3_coder", TOOLS)
    one.add("<tool_call>\n<function=save>\n<parameter=text>\nab")
    assert [part.text for part in one.add("c\n")] == ["c"]
    assert [part.text for part in one.add("\nd</param")] == ["\\n\\nd"]
    assert [part.text for part in one.add("eter></function>")] == ['"}']


def test_marks_of_a_family_inside_strings() -> None:
    text = "</tool_call><tool_call>[TOOL_CALLS]<|END_ACTION|><think></think>"
    for name, write in (("json_tools", json_tools), ("mistral", mistral), ("cohere2_moe", cohere)):
        assert parse(write([("save", {"text": text})]), name, tools=TOOLS).objects == [
            ("save", {"text": text})
        ]
    assert parse(qwen3_coder([("save", {"text": text})]), "qwen3_coder", tools=TOOLS).objects == [
        ("save", {"text": text})
    ]


def test_a_gemma_call_streams() -> None:
    one = OutputParser(None, False, "gemma4", TOOLS)
    one.add('<|tool_call>call:save{text:<|"|>a')
    assert [part.text for part in one.add('"}b')] == ['\\"}b']
    assert [part.text for part in one.add('<|"|>,size:1')] == ['", "size": ']
    assert [part.text for part in one.add("2}")] == ["12}"]


@pytest.mark.parametrize(
    "text", ["save{text:x", "save{text", "save{" + "a:[" * 200, "save{a:<|tool_call>}"]
)
def test_a_gemma_call_that_goes_wrong_is_not_lost(text: str) -> None:
    parsed = parse(f"<|tool_call>call:{text}<tool_call|> after", "gemma4", tools=TOOLS)
    assert (len(parsed.calls), parsed.content) == (1, " after")


# gpt-oss

HARMONY_THINK = ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>", 1, 2)
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
        parsed = parse(text, HARMONY, tools=TOOLS, reasoning=reasoning, cuts=cuts)
        assert (parsed.order, parsed.reasoning, parsed.content) == (order, reasoned, content)
        assert all(isinstance(value, dict) for _, value in parsed.objects)


def test_harmony_that_begins_in_the_thinking() -> None:
    text = f"hm<|end|>{NEXT}<|channel|>final<|message|>Hi"
    parsed = parse(text, HARMONY, reasoning=HARMONY_THINK, thinking_open=True, tools=())
    assert (parsed.reasoning, parsed.content) == ("hm", "Hi")


# Which family


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}{{ tool_call.name }}", "json_tools"),
        ("<tool_call> tool_call.name <arg_key>", "glm47"),
        ({"default": "x", "tool_use": "[TOOL_CALLS]"}, "mistral"),
        ("<|im_start|>", None),
        (None, None),
    ],
)
def test_the_form_is_read_off_the_template(template: Any, expected: str | None) -> None:
    assert parser_for(template, None) == expected


def test_the_form_can_be_named() -> None:
    assert parser_for("[TOOL_CALLS]", "kimi_k2") == "kimi_k2"
    with pytest.raises(ValueError, match="json_tools"):
        parser_for("", "nobody")
