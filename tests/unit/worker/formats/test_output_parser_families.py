"""Tool calls as each family writes them."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.worker.formats.families.table import call_forms, family_of, parser_for
from lmx.worker.formats.forms import arguments as module
from lmx.worker.formats.parser import OutputParser
from lmx.worker.schemas.dialects import standalone
from tests.support.fakes.call_writers import (
    BARE_WRITERS,
    FORMS,
    WRITERS,
    Calls,
    dumps,
)
from tests.support.rigs.budgets import examples
from tests.support.rigs.parsed_output import parse, tool

families = pytest.mark.parametrize(("name", "write"), WRITERS, ids=list(FORMS))

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


@families
def test_calls_with_text_around(name: str, write: Callable[[Calls], str]) -> None:
    text = f"<think>\nhm\n</think>\n\nI save.\n{write([SAVE, NOW, SAVE])}"
    parsed = parse(text, name, tools=TOOLS)
    assert parsed.objects == [SAVE, NOW, SAVE]
    assert (parsed.reasoning, parsed.content) == ("hm", "I save.")
    for cuts in ([], [len(text) // 2], list(range(3, len(text), 7))):
        whole = parse(text, name, tools=TOOLS, cuts=cuts)
        assert (whole.calls, whole.content) == (parsed.calls, parsed.content)


@pytest.mark.parametrize("name", ["atem", "glm47", "longcat", "minimax_m2", "step3"])
def test_white_space_of_a_text_is_a_part_of_it(name: str) -> None:
    """What is to be replaced in a file must be found there."""
    write = next(write for family, write in WRITERS if family == name)
    for value in ("    return x\n", " a", "a \t", "a\n\n", "  "):
        text = write([("save", {"path": "x", "text": value})])
        for cuts in ([], list(range(1, len(text)))):
            parsed = parse(text, name, tools=TOOLS, cuts=cuts)
            assert parsed.objects == [("save", {"path": "x", "text": value})], value
    # A model may put it on lines of its own.
    text = write([("save", {"path": "\nx\n", "text": "\n  y\n\n"})])
    assert parse(text, name, tools=TOOLS).objects == [("save", {"path": "x", "text": "  y\n"})]


@pytest.mark.parametrize("name", dict(WRITERS))
def test_an_answer_about_the_marker_of_calls_is_whole(name: str) -> None:
    for form in call_forms(family_of(name)):
        # Without an end, whatever follows it is its name.
        if not form.end or form.start in ("[", "{"):
            continue
        for answer in (
            f"You begin a call with `{form.start}` and then the name. All of this is said.",
            f'{{"text": "the tag {form.start} begins a call", "ok": true}}',
            f"First comes {form.start}, and then a name.",
        ):
            for cuts in ([], list(range(1, len(answer)))):
                parsed = parse(answer, name, tools=TOOLS, cuts=cuts)
                assert (parsed.content, parsed.calls) == (answer, []), form


@pytest.mark.parametrize("written", ["now", "now.now", '"now.now"'])
def test_a_function_of_muse_that_is_named_twice_without_a_section(written: str) -> None:
    text = f"Hi <atem:invoke name={written}></atem:invoke>"
    for names, called in ((["now"], "now"), (["now", "now.now"], written.strip('"'))):
        for cuts in ([], list(range(1, len(text)))):
            parsed = parse(text, "atem", tools=[tool(name) for name in names], cuts=cuts)
            assert (parsed.content, parsed.objects) == ("Hi", [(called, {})])


def test_a_text_whose_end_was_forgotten_ends_with_the_call() -> None:
    answer = "<tool_call>\n<function=save>\n<parameter=text>\nx</function>\n</tool_call>"
    for cuts in ([], list(range(1, len(answer)))):
        parsed = parse(answer, "qwen3_coder", tools=TOOLS, cuts=cuts)
        assert (parsed.content, parsed.objects) == ("", [("save", {"text": "x"})])


@pytest.mark.parametrize("name", ["pythonic", "llama4", "olmo3"])
def test_python_with_line_breaks_in_strings(name: str) -> None:
    write = dict(WRITERS)[name]
    given = {"path": "it's", "text": 'def f():\n\treturn "1"\r\n'}
    text = write([("save", given)])
    assert "\\n" in text
    broken = text.replace("\\n", "\n").replace("\\r", "\r")
    assert parse(broken, name, tools=TOOLS).objects == [("save", given)]
    # A backslash at the end of a line, and in a string the name of another argument, which is a
    # keyword of Python.
    given = {"path": "docker \\\n -v\nhttps://x/?from=1", "from": "y"}
    odd = [tool("save", path="string", **{"from": "string"})]
    broken = write([("save", given)]).replace("\\\\", "\\").replace("\\n", "\n")
    assert parse(broken, name, tools=odd).objects == [("save", given)]


def test_a_fenced_call_that_is_cut_off_is_no_content() -> None:
    text = '<tool_call>\n```json\n{"name": "save", "argu'
    parsed = parse(text, "json_tools", tools=TOOLS)
    assert (parsed.content, parsed.calls) == ("", [])


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
    form = call_forms(family_of(name))[0]
    text = f"{form.start}:-){form.end}"
    parsed = parse(f"Hi {text}", name, tools=TOOLS)
    # Without an end mark of its own it may as well have been cut off.
    may_be = (f"Hi {text}",) if form.end else (f"Hi {text}", "Hi ")
    assert parsed.content in may_be
    assert parsed.calls == []


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
        # Behind its mark it is a call, and no part of it is content.
        assert parsed.calls or parsed.content in ("", text[:length])
        assert not any(form.start in parsed.content for form in call_forms(family_of(name)))


@families
def test_no_tools_no_calls(name: str, write: Callable[[Calls], str]) -> None:
    text = write([NOW])
    assert parse(text, name, tools=()).content == text


TAG_FAMILIES = [
    (name, write) for name, write in WRITERS
    if name in ("qwen3_coder", "glm47", "longcat", "minimax_m2", "seed_oss", "step3")
]  # fmt: skip


@given(
    st.sampled_from(TAG_FAMILIES),
    st.dictionaries(
        st.sampled_from(["path", "size", "tags", "options", "else"]),
        st.text()
        | st.sampled_from(["null", "None", "true", "3", "[1]", "{'a': None}", '{"b": 1}']),
    ),
    st.data(),
)
@settings(max_examples=examples(120), deadline=None)
def test_parameters_have_the_types_of_the_schema(
    writer: tuple[str, Callable[[Calls], str]], arguments: dict[str, str], data: st.DataObject
) -> None:
    name, write = writer
    text = write([("save", arguments)])
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    parsed = parse(text, name, tools=TOOLS, cuts=cuts, reasoning=None)
    ((_, values),) = parsed.objects
    assert values.keys() == arguments.keys()
    for key, value in values.items():
        if key == "path":
            assert value.strip() == arguments[key].strip()
        elif key != "else":
            kind = {"size": int | float, "tags": list, "options": dict}[key]
            assert isinstance(value, kind) or value.strip() == arguments[key].strip()


@families
@pytest.mark.parametrize("around", ["{}", "a {} b", "{}\n{}", "x{}"])
def test_a_family_s_marks_are_text_inside_an_argument(
    name: str, write: Callable[[Calls], str], around: str
) -> None:
    whole = write([SHORT, NOW])
    family = family_of(name)
    marks = {mark for form in family.calls for mark in (form.start, form.end, *form.tokens)}
    marks |= {*re.findall(r"<[^<>]*>|\[[A-Z_]+\]", whole), "</think>", "<think>"} - {""}
    for mark in sorted(marks - {""}):
        said = around.format(mark, mark)
        parsed = parse(write([("save", {"text": said, "path": "p"})]), name, tools=TOOLS, cuts=[])
        if name == "minimax_m3" and mark in (family.calls[0].start, family.calls[0].end):
            continue  # mlx-vlm's parser reads it, and ends a call at the first of them.
        assert parsed.objects == [("save", {"text": said, "path": "p"})], mark
        assert parsed.content == ""


@pytest.mark.parametrize(("fault", "most"), [({}, 1), ({"e": {"$ref": "#/$defs/gone"}}, 5)])
def test_what_parameters_refer_to_is_read_once(
    monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], most: int
) -> None:
    read: list[Any] = []

    def counted(schema: Any) -> Any:
        read.append(schema)
        return standalone(schema)

    monkeypatch.setattr(module, "standalone", counted)
    number, text = {"$ref": "#/$defs/number"}, {"$ref": "#/$defs/text"}
    schema = {
        "type": "object",
        "properties": {"a": number, "b": text, "c": text, "d": number, **fault},
        "$defs": {"number": {"type": "integer"}, "text": {"type": "string"}},
    }
    tools = [{"type": "function", "function": {"name": "save", "parameters": schema}}]
    values = "".join(f"<parameter={key}>\n{at}\n</parameter>\n" for at, key in enumerate("abcdab"))
    call = f"<tool_call>\n<function=save>\n{values}</function>\n</tool_call>"
    parsed = parse(call, "qwen3_coder", tools=tools)
    [(_, written)] = parsed.calls
    assert written == '{"a": 0, "b": "1", "c": "2", "d": 3, "a": 4, "b": "5"}'
    assert len(read) == most


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "json_tools",
            r'{"function": {"name": "save", "arguments": {"options": {"a": "\ud800"}}}}',
        ),
        (
            "qwen3_coder",
            r'<function=save><parameter=options>{"a": "\ud800"}</parameter></function>',
        ),
        ("pythonic", r"""[save(options={"a": "\ud800"})]"""),
    ],
)
def test_half_of_a_surrogate_pair_stays_an_escape(name: str, text: str) -> None:
    form = call_forms(family_of(name))[0]
    parsed = parse(f"{form.start}{text}{form.end}", name, tools=TOOLS)
    ((_, arguments),) = parsed.calls
    arguments.encode()  # Anything else could not be sent, nor what others said in that step.
    assert json.loads(arguments) == {"options": {"a": "\ud800"}}


def test_infinity_is_no_call() -> None:
    text = '<tool_call>{"function": {"name": "save", "arguments": {"size": 1e999}}}</tool_call>'
    parsed = parse(text, "json_tools", tools=TOOLS)
    assert (parsed.calls, parsed.content) == ([], text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma4", f"call:{' ' * 300_000}a\nb{{}}"),
        (
            "kimi_k2",
            f"<|tool_call_begin|>a{' ' * 300_000}b<|tool_call_argument_begin|>{{}}",
        ),
    ],
)
def test_a_row_of_spaces_for_a_name_takes_no_minutes(name: str, text: str) -> None:
    form = call_forms(family_of(name))[0]
    assert parse(f"{form.start}{text}{form.end}", name, tools=TOOLS, cuts=[]).calls == []


def test_strings_stream_out_of_tags() -> None:
    one = OutputParser(None, False, "qwen3_coder", TOOLS)
    one.add("<tool_call>\n<function=save>\n<parameter=text>\nab")
    assert [part.text for part in one.add("c\n")] == ["c"]
    assert [part.text for part in one.add("\nd</param")] == ["\\n\\nd"]
    assert [part.text for part in one.add("eter></function>")] == ['"}']


def test_a_gemma_call_streams() -> None:
    one = OutputParser(None, False, "gemma4", TOOLS)
    one.add('<|tool_call>call:save{text:<|"|>a')
    assert [part.text for part in one.add('"}b')] == ['\\"}b']
    assert [part.text for part in one.add('<|"|>,size:1')] == ['"']
    assert [part.text for part in one.add("2}")] == [', "size": 12}']


@pytest.mark.parametrize(
    "text",
    ["save{text:x", "save{text", "save{" + "a:[" * 200, "save{a:<|tool_call>}", "save{a:[}]}"],
)
def test_a_gemma_call_that_goes_wrong_is_not_lost(text: str) -> None:
    parsed = parse(f"<|tool_call>call:{text}<tool_call|> after", "gemma4", tools=TOOLS)
    ((_, arguments),) = parsed.calls
    assert isinstance(json.loads(arguments), dict), "what is no JSON never leaves"
    assert parsed.content.endswith(" after")


def pieces_of(text: str, name: str | None, cuts: list[int] | None) -> Any:
    parsed = parse(text, name, tools=TOOLS, cuts=cuts)
    return parsed.order, parsed.content, parsed.reasoning, parsed.calls


SHORT: tuple[str, dict[str, Any]] = ("save", {"text": 'a<"é', "size": 3, "options": {"a": [True]}})


@families
def test_no_cut_makes_a_difference(name: str, write: Callable[[Calls], str]) -> None:
    text = f"<think>h</think>So:\n{write([SHORT, NOW])}\n\nDone"
    whole = pieces_of(text, name, [])
    assert pieces_of(text, name, None) == whole
    # At the edges of words, and inside each.
    for found in re.finditer(r"(?<=\W)|(?=\W)|(?<=\W\w)", text):
        assert pieces_of(text, name, [found.start()]) == whole, text[: found.start()]


@given(st.sampled_from(WRITERS), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_cuts_make_no_difference_to_what_went_wrong(
    writer: tuple[str, Callable[[Calls], str]], data: st.DataObject
) -> None:
    name, write = writer
    text = write([SHORT, NOW])
    tokens = sorted(set(re.findall(r"<[^<>]*>|\[[A-Z_]+\]|\w+|\s+|.", text)))
    pieces = st.sampled_from([*tokens, text, "<think>", "</think>", "{", "[", "]", "}", '"', " "])
    broken = data.draw(st.lists(pieces, max_size=5).map("".join))
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + broken + text[place + data.draw(st.integers(0, 5)) :]
    whole = pieces_of(text, name, [])
    assert pieces_of(text, name, None) == whole
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    assert pieces_of(text, name, cuts) == whole


# Calls without marks


bare = pytest.mark.parametrize(
    ("name", "write"), BARE_WRITERS, ids=["list", "code", "llama4", "glm4", "llama3_json"]
)


@bare
def test_an_answer_may_begin_with_calls_without_marks(
    name: str | None, write: Callable[[Calls], str]
) -> None:
    text = f"<think>\nhm\n</think>\n\n{write([SAVE])}\n\nSaved."
    for cuts in (None, [], list(range(2, len(text), 5))):
        parsed = parse(text, name, tools=TOOLS, cuts=cuts)
        assert (parsed.objects, parsed.content) == ([SAVE], "Saved.")
        # Behind content it is content, and so is what names no tool.
        parsed = parse(f"So: {write([SAVE])}", name, tools=TOOLS, cuts=cuts)
        assert (parsed.calls, parsed.content) == ([], f"So: {write([SAVE])}")
        other = write([("nobody", {"a": 1})])
        parsed = parse(other, name, tools=TOOLS, cuts=cuts)
        assert (parsed.calls, parsed.content) == ([], other)


@given(st.sampled_from(BARE_WRITERS), st.data())
@settings(max_examples=40, deadline=None)
def test_cuts_make_no_difference_without_marks(
    writer: tuple[str | None, Callable[[Calls], str]], data: st.DataObject
) -> None:
    name, write = writer
    text = write([SHORT])
    place = data.draw(st.integers(0, len(text)))
    more = data.draw(st.sampled_from(["", "(", ")", "]", "'", '"', "\\", "\n", "```", "save("]))
    text = text[:place] + more + text[place + data.draw(st.integers(0, 3)) :]
    whole = pieces_of(text, name, [])
    assert pieces_of(text, name, None) == whole
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    assert pieces_of(text, name, cuts) == whole


@pytest.mark.parametrize(
    "text",
    [
        "[save(path=path)]",
        "[save('a')]",
        "[save(**{'path': 'a'})]",
        "[save(path='a', path='b')]",
        "[save(options={1: 2})]",
        "[save(size=1e999)]",
        "[save(path='a'); now()]",
        "[save(path='a')",
        "[save(path='a)]",
        "[save(path=('a'])]",
        "[os.save(path='a')]",
        "[now() for x in y]",
        "```python\nsave(path='a')\n```",
        "```tool_code\nx = save(path='a')\n```",
        "[save(path=" + "[" * 300 + "]" * 300 + ")]",
    ],
)
def test_python_that_is_no_call_is_content(text: str) -> None:
    for cuts in (None, list[int]()):
        parsed = parse(text, None, tools=TOOLS, cuts=cuts)
        assert (parsed.calls, parsed.content) == ([], text)


def test_a_text_of_deepseek_stays_as_it_is() -> None:
    # Not even the word "null" or white space is anything but text there.
    arguments = {"path": " null\n", "text": "", "size": 3, "tags": [], "options": {"a": None}}
    write = FORMS["deepseek_v32"]
    for text in ("null", "", "\n\n x \n"):
        parsed = parse(write([("save", arguments | {"text": text})]), "deepseek_v32", tools=TOOLS)
        assert parsed.objects == [("save", arguments | {"text": text})]


# Which family


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}{{ tool_call.name }}", "json_tools"),
        ("<tool_call> tool_call.name <arg_key>", "glm47"),
        ({"default": "x", "tool_use": "[TOOL_CALLS]"}, "mistral"),
        ("<|im_start|>", None),
        (None, None),
        # What the makers' templates have of it.
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> ```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek_v31"),
        ("<｜DSML｜function_calls>", "deepseek_v32"),
        ("<seed:tool_call>\\n<function=", "seed_oss"),
        ("<tool_calls>[{", "jamba"),
        ("<tool_calls>\n<tool_call>name\n```json", "hunyuan"),
        ("<TOOLCALL>", "nemotron"),
        ("<function_calls>", "olmo3"),
        ("<|action_start|><|plugin|>", "internlm"),
        ("<｜tool_calls_begin｜> <steptml:invoke name=", "step3"),
        ("<start_function_call>", "functiongemma"),
        ("<|tools_prefix|>", "apertus"),
        ("[gMASK]<sop> {{ m.metadata }}", "glm4"),
        ("[gMASK]<sop> <tool_call> <arg_key> metadata", "glm47"),
        ("respond only with <|tool_call|>", "granite"),
        ("<|tool|> <|/tool|>", "phi4"),
        ("<|python_start|>", "llama4"),
        ("ipython <|python_tag|>", "llama3_json"),
        ("Respond with a dictionary of argument name and its value.", "llama3_json"),
    ],
)
def test_the_form_is_read_off_the_template(template: Any, expected: str | None) -> None:
    assert parser_for(template, None) == expected


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        (["<tool_calls>", "</tool_calls>"], "hunyuan"),
        (["<|tools_prefix|>", "<|tools_suffix|>", "<s>"], "apertus"),
        # Qwen's vocabulary shows no form, with a template that knows no tools.
        (["<tool_call>", "</tool_call>"], None),
        (["<|tools_prefix|>"], None),
    ],
)
def test_the_form_is_read_off_the_vocabulary(vocabulary: list[str], expected: str | None) -> None:
    assert parser_for("{{ messages }}", None, vocabulary) == expected


def test_the_form_can_be_named() -> None:
    assert parser_for("[TOOL_CALLS]", "kimi_k2") == "kimi_k2"
    with pytest.raises(ValueError, match="json_tools"):
        parser_for("", "nobody")


@pytest.mark.parametrize(
    ("family", "mark"), [("glm47", "<tool_call>"), ("olmo3", "<function_calls>")]
)
def test_text_behind_a_mark_that_begins_no_call_is_not_held_back(family: str, mark: str) -> None:
    one = OutputParser(None, False, family, TOOLS)
    one.add(f'OPEN = "{mark}')
    assert "".join(part.text for part in one.add('" and')) == f'{mark}" and'


def test_schemas_that_refer_to_each_other_without_number_allow_any_value() -> None:
    length = 1500
    defs: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(length)}
    defs[f"d{length}"] = {"type": "integer"}
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}
    tools = [{"type": "function", "function": {"name": "now", "parameters": parameters}}]
    text = "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
    assert parse(text, "glm47", tools=tools, cuts=[]).objects == [("now", {"a": 5})]
