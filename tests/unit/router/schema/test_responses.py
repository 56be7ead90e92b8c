"""What a request of the Responses API becomes: a conversation, tools, and errors that name the
field."""

import base64
import itertools
import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate, Thinking
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.router.media.source import MediaSource
from lmx.router.rendering.responses.sealing import sealed, sealing_key
from lmx.router.rendering.responses.tools import CalledTool
from lmx.router.schema.requests.responses.grammar import StepBudget, input_pattern
from lmx.router.schema.requests.responses.items import ITEMS, stored_items
from lmx.router.schema.requests.responses.responses import (
    Asked,
    asked_of,
    generation_of,
    parse_responses,
)
from tests.support.clients.codex_request import PATCH_GRAMMAR as PATCH

KEY = sealing_key("secret")
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def asked(**fields: Any) -> tuple[Asked, Generate]:
    request = parse_responses({"model": "m", "input": "hi", **fields})
    made = asked_of(request, request.items, KEY)
    return made, generation_of(request, made)


def messages_of(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return list(asked(input=list(items), **fields)[0].messages)


def fault(**fields: Any) -> tuple[ErrorCode, str | None]:
    with pytest.raises(RequestError) as caught:
        asked(**fields)
    return caught.value.code, caught.value.param


def test_a_conversation_with_tools_and_thoughts() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
    items: tuple[dict[str, Any], ...] = (
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": "One"},
        {"role": "user", "content": [{"type": "input_text", "text": "Two"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        call,
        {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": 'ls "x"'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}],
        },
    )
    assert messages_of(*items, instructions="Be kind.") == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "One\nTwo"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                },
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "sh", "arguments": '{"input":"ls \\"x\\""}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "x\ny"},
    ]


def test_arguments_may_be_an_object_with_integers_of_any_size() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": [2**64]}}
    made = messages_of({"role": "user", "content": "hi"}, call)
    assert made[1]["tool_calls"][0]["function"]["arguments"] == '{"a":[18446744073709551616]}'
    (stored,) = orjson.loads(stored_items(ITEMS.validate_python([call])))
    assert stored["arguments"] == '{"a":[18446744073709551616]}'


def file(data: bytes | str, **fields: Any) -> dict[str, Any]:
    if isinstance(data, bytes):
        data = base64.b64encode(data).decode()
    return {"type": "input_file", "file_data": data, **fields}


@pytest.mark.parametrize(
    "given",
    [
        file("größer\n".encode(), filename="a.py"),
        file("data:text/markdown;base64," + base64.b64encode("größer\n".encode()).decode()),
        file("data:application/json,gr%C3%B6%C3%9Fer%0A"),
        file("größer\n".encode("utf-8-sig")),
        file("größer\n".encode("utf-16")),
        {"type": "input_file", "file_url": "data:text/plain;base64,Z3LDtsOfZXIK"},
    ],
)
def test_a_file_of_text_is_a_document(given: dict[str, Any]) -> None:
    text = {"type": "input_text", "text": "Look"}
    named = f"<title>{given['filename']}</title>\n" if "filename" in given else ""
    document = f"<document>\n{named}größer\n\n</document>"
    turn = {"role": "user", "content": [given, text]}
    assert messages_of(turn) == [{"role": "user", "content": f"{document}\nLook"}]
    output = {"type": "function_call_output", "call_id": "c", "output": [given]}
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    assert messages_of(call, output)[1]["content"] == document


@pytest.mark.parametrize(
    ("given", "code", "field", "said"),
    [
        (file(b"%PDF-1.7\n\xe2\xe3"), "unsupported_value", "file_data", "PDF"),
        (file(b"PK\x03\x04\x00\x00"), "unsupported_value", "file_data", "no text"),
        (file(b"gr\xf6\xdfer"), "unsupported_value", "file_data", "no text"),
        (file("no base64!"), "invalid_media", "file_data", "base64"),
        (file("A" * 13 * 2**20), "request_too_large", "file_data", "at most"),
        (
            {"type": "input_file", "file_id": ""},
            "missing_required_parameter", "file_data", "or `file_id`",
        ),
        (
            {"type": "input_file", "file_url": "https://example.com/a.txt"},
            "unsupported_value", "file_url", "address",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_text_is_refused_by_name(
    given: dict[str, Any], code: str, field: str, said: str
) -> None:
    with pytest.raises(RequestError) as caught:
        asked(input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}, given]}])
    error = caught.value
    assert (error.code.value, error.param) == (code, f"input[0].content[1].{field}")
    assert said in error.message
    assert fault(input=[{"role": "system", "content": [given]}])[1] == "input[0].content[0]"


def test_images_and_sounds() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    text = {"type": "input_text", "text": "Look"}
    items = [
        {"role": "user", "content": "Hi."},
        {"role": "user", "content": [text, image]},
        {"type": "function_call", "call_id": "c", "name": "f"},
        {"type": "function_call_output", "call_id": "c", "output": [sound]},
    ]
    made = asked(input=items)[0]
    assert made.messages[0]["content"] == [
        {"type": "text", "text": "Hi.\nLook"}, {"type": "image", "media": 0},
    ]  # fmt: skip
    assert made.messages[2]["content"] == [{"type": "audio", "media": 1}]
    assert [source.param for source in made.media] == [
        "input[1].content[1].image_url", "input[3].output[0].input_audio",
    ]  # fmt: skip
    assert isinstance(made.media[0], MediaSource) and made.media[0].max_pixels == 512 * 512
    later = parse_responses({"input": items})
    media = asked_of(later, later.items, KEY, earlier=2).media
    assert media[0].param.startswith("previous_response_id")
    assert media[1].param == "input[1].output[0].input_audio"


def test_items_with_fields_missing() -> None:
    token = sealed("kept", KEY)
    found = messages_of(
        {"role": "user", "content": None, "id": None},
        {"type": "reasoning", "id": None, "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "reasoning", "summary": None, "encrypted_content": token, "status": None},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "!"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}},
        {"type": "function_call", "call_id": "d", "name": "f", "namespace": "space"},
        {"type": "function_call_output", "call_id": "c"},
    )
    assert found[0] == {"role": "user", "content": ""}
    assert found[1]["reasoning_content"] == "kept!"
    calls = [one["function"] for one in found[1]["tool_calls"]]
    assert calls == [{"name": "f", "arguments": '{"a":1}'}, {"name": "space__f", "arguments": "{}"}]
    assert found[2] == {"role": "tool", "tool_call_id": "c", "content": ""}


def test_what_only_openai_runs_is_left_out_and_named() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "local_shell_call", "action": {"type": "exec"}},
        {"type": "never_heard_of", "payload": {"a": [1]}},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAfromelsewhere"},
        {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
    ]
    kinds = (
        "web_search", "web_search_preview", "image_generation", "file_search", "code_interpreter",
        "computer_use_preview", "mcp", "local_shell", "tool_search",
    )  # fmt: skip
    tools = [{"type": kind, "server_label": "x"} for kind in kinds]
    made, generate = asked(input=items, tools=tools, tool_choice={"type": "web_search"})
    assert made.messages == ({"role": "user", "content": "hi"},)
    assert list(made.left_out) == [
        *[f"tools.{kind}" for kind in kinds], "tool_choice.web_search", "input.web_search_call",
        "input.local_shell_call", "input.never_heard_of", "input.encrypted_content",
    ]  # fmt: skip
    assert generate.tool_use is not None and generate.tool_use.choice is ToolChoice.AUTO
    assert [tool["function"]["name"] for tool in generate.tool_use.tools] == ["get_weather"]
    assert asked(tools=tools)[1].tool_use is None


def test_tools_of_all_kinds() -> None:
    custom = {"type": "custom", "name": "apply_patch", "description": "Patches."}
    lark = {"type": "grammar", "syntax": "lark", "definition": PATCH}
    space = {
        "type": "namespace",
        "name": "mcp__files",
        "description": "Files.",
        "tools": [FUNCTION, custom, {"type": "web_search"}],
    }
    chat_form = {"type": "function", "function": {"name": "nested", "parameters": None}}
    made, generate = asked(tools=[FUNCTION, {**custom, "format": lark}, space, chat_form])
    assert generate.tool_use is not None
    functions = [tool["function"] for tool in generate.tool_use.tools]
    assert [one["name"] for one in functions] == [
        "get_weather", "apply_patch", "mcp__files__get_weather", "mcp__files__apply_patch",
        "nested",
    ]  # fmt: skip
    assert functions[0] == {key: value for key, value in FUNCTION.items() if key != "type"}
    patch = functions[1]
    assert patch["strict"] and patch["parameters"]["required"] == ["input"]
    assert PATCH in patch["description"]
    assert re.fullmatch(
        patch["parameters"]["properties"]["input"]["pattern"],
        "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch",
    )
    assert functions[2]["description"] == "Files.\nThe weather of a city."
    assert made.tools.called["mcp__files__apply_patch"] == CalledTool(
        "apply_patch", "mcp__files", custom=True
    )


@pytest.mark.parametrize(
    ("tool", "param", "words"),
    [
        ({"name": "f"}, "tools[0]", "an object with a `type`, got an object of 1"),
        (
            {"type": "custom", "name": "f", "format": {"type": "json"}},
            "tools[0].format",
            'of the type "json"',
        ),
    ],
)
def test_a_tool_of_no_known_type(tool: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)) as caught:
        asked(tools=[tool])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("choice", "wanted", "function", "allowed"),
    [
        ("auto", ToolChoice.AUTO, None, None),
        ("none", ToolChoice.NONE, None, None),
        ("required", ToolChoice.REQUIRED, None, None),
        ({"type": "function", "name": "get_weather"}, ToolChoice.REQUIRED, "get_weather", None),
        (
            {"type": "function", "function": {"name": "get_weather"}},
            ToolChoice.REQUIRED,
            "get_weather",
            None,
        ),
        ({"type": "custom", "name": "sh"}, ToolChoice.REQUIRED, "sh", None),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "sh"}, {"type": "mcp", "server_label": "x"}],
            },
            ToolChoice.REQUIRED,
            None,
            ("sh",),
        ),
    ],
)
def test_the_choice_of_a_tool(
    choice: Any, wanted: ToolChoice, function: str | None, allowed: tuple[str, ...] | None
) -> None:
    tools = [FUNCTION, {"type": "custom", "name": "sh"}]
    use = asked(tools=tools, tool_choice=choice, parallel_tool_calls=False)[1].tool_use
    assert use is not None
    assert (use.choice, use.function, use.allowed) == (wanted, function, allowed)
    assert not use.parallel


def test_all_other_fields() -> None:
    schema = {"type": "object"}
    made = asked(
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        reasoning={"effort": "max", "summary": "auto"},
        max_output_tokens=7,
        max_tool_calls=3,
        truncation="auto",
        metadata={"a": "b"},
        safety_identifier="s",
        service_tier="flex",
        prompt_cache_key="k",
        stream_options={"include_obfuscation": False},
        include=["message.output_text.logprobs", "file_search_call.results"],
        top_logprobs=2,
        temperature=0.5,
        store=False,
    )[1]
    assert made.structure is not None
    assert (made.structure.kind, made.structure.text) == (
        StructureKind.JSON_SCHEMA, json.dumps(schema, separators=(",", ":")),
    )  # fmt: skip
    assert (
        made.thinking == Thinking("max", param="reasoning.effort")
        and made.max_tokens == 7
        and made.top_logprobs == 2
    )
    assert made.truncate_prompt_tokens == -1 and made.sampling.temperature == 0.5
    # A key of the cache is no wall between its users.
    assert made.cache_salt == ""
    plain = asked()[1]
    assert plain.top_logprobs is None and plain.truncate_prompt_tokens is None
    not_at_all = Thinking("none", False, param="reasoning.effort")
    assert asked(reasoning={"effort": "none"})[1].thinking == not_at_all
    json_object = asked(text={"format": {"type": "json_object"}})[1].structure
    assert json_object is not None and json_object.kind is StructureKind.JSON_OBJECT


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, ErrorCode.MISSING_PARAMETER, "input"),
        ({"input": []}, ErrorCode.MISSING_PARAMETER, "input"),
        ({"input": [{"type": "foo"}]}, ErrorCode.INVALID_VALUE, "input"),
        ({"input": [{"content": "x"}]}, ErrorCode.INVALID_TYPE, "input[0]"),
        ({"input": [{"role": "robot"}]}, ErrorCode.INVALID_VALUE, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_hologram"}]}]},
            ErrorCode.UNSUPPORTED_VALUE,
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            ErrorCode.MISSING_PARAMETER,
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": "x"}]}]},
            ErrorCode.INVALID_VALUE,
            "input[0].content[0]",
        ),
        (
            {"input": [{"type": "function_call", "name": "f"}]},
            ErrorCode.MISSING_PARAMETER,
            "input[0].call_id",
        ),
        ({"conversation": ""}, ErrorCode.INVALID_VALUE, "conversation"),
        ({"conversation": 1}, ErrorCode.INVALID_TYPE, "conversation"),
        ({"conversation": {}}, ErrorCode.MISSING_PARAMETER, "conversation.id"),
        (
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
            ErrorCode.INVALID_VALUE,
            "conversation",
        ),
        ({"prompt": {"id": "pmpt_1"}}, ErrorCode.UNSUPPORTED_VALUE, "prompt"),
        (
            {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
            ErrorCode.UNSUPPORTED_VALUE,
            "context_management",
        ),
        ({"background": True, "store": False}, ErrorCode.INVALID_VALUE, "background"),
        ({"tools": [FUNCTION, FUNCTION]}, ErrorCode.INVALID_VALUE, "tools[1].name"),
        ({"tools": [{"type": "custom"}]}, ErrorCode.MISSING_PARAMETER, "tools[0].name"),
        ({"tool_choice": "required"}, ErrorCode.INVALID_VALUE, "tool_choice"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
            ErrorCode.INVALID_VALUE,
            "tool_choice.name",
        ),
        ({"text": {"format": {"type": "xml"}}}, ErrorCode.INVALID_VALUE, "text.format.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            ErrorCode.MISSING_PARAMETER,
            "text.format.schema",
        ),
        ({"max_output_tokens": 0}, ErrorCode.INVALID_VALUE, "max_output_tokens"),
        ({"reasoning": {"effort": "huge"}}, ErrorCode.INVALID_VALUE, "reasoning.effort"),
    ],
)
def test_faults_name_the_field(fields: dict[str, Any], code: ErrorCode, param: str) -> None:
    assert fault(**fields) == (code, param)


MATH = """
start: expr
expr: term (SP ADD SP term)* -> add
    | term
term: INT | "(" expr ")"
SP: " "
ADD: "+" | "-"
%import common.INT
"""


def pattern_of(syntax: str, definition: str) -> str:
    return input_pattern(syntax, definition, "p", StepBudget())


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (PATCH, "*** Begin Patch\n*** Add File: a.py\n+x = 1\n*** End Patch\n", "+x"),
        (MATH, "1 + (2 - (3 + 4))", "1 +"),
        ('start: "a" B "c"i\nB: "b".."d"~2..3\n%ignore /[ ]+/', "a bcd C", "a b c"),
        ('start: [WORD] (";" WORD)*\n%import common (WORD, WS)', "a;b", "a;"),
        ('start: "*" /a\\/b/ "\\n" // end\n', "*a/b\n", "*a/b"),
        (r'start: "\u00e9\x41\ud800\"\\"', '\u00e9A?"\\', "x"),
        (r'start: "\U0001F600\UFFFFFFFF"', "\U0001f600?", "U0001F600"),
        ('# top\nstart: "a"\n // c\n\n | b # d\n// e\nb: "b"', "b", "c"),
    ],
)
def test_a_grammar_as_a_regular_expression(grammar: str, good: str, bad: str) -> None:
    pattern = pattern_of("lark", grammar)
    assert re.fullmatch(pattern, good) and not re.fullmatch(pattern, bad)


LARGE = "start: a\n" + "".join(
    f"{one}: {' '.join([other] * 9)}\n" for one, other in itertools.pairwise("abcdefgh")
) + 'h: "xxxxxxxxxxxx"'  # fmt: skip


@pytest.mark.parametrize(
    "grammar",
    [
        "start: a", "b: /x/", "start: start", 'start: "a', 'start: "a" &', "start: <x>",
        "start: " + "(" * 20_000,
        "%declare A\nstart: A", "%import other.A\nstart: A", 'start{x}: "a"',
        LARGE,
    ],
)  # fmt: skip
def test_a_grammar_that_can_t_be_enforced(grammar: str) -> None:
    with pytest.raises(RequestError) as caught:
        pattern_of("lark", grammar)
    assert caught.value.param == "p"


def mutual(names: int) -> str:
    """A grammar that is too large to every depth but the first."""
    return f'start: a\na: "x" | {"b " * names}\nb: "y" | {"a " * names}\n'


@pytest.mark.parametrize("grammar", [mutual(28), "start: A\nA: /x/\nb: " + "A " * 30_000])
def test_the_grammars_of_a_request_have_a_limit_together(grammar: str) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": grammar}
    tools = [{"type": "custom", "name": f"t{n}", "format": form} for n in range(3)]
    assert asked(tools=tools[:1])[0].tools.called
    code, param = fault(tools=tools)
    assert code is ErrorCode.INVALID_VALUE and param in {
        f"tools[{n}].format.definition" for n in (1, 2)
    }


def test_a_grammar_without_recursion_is_written_to_one_depth() -> None:
    budget = StepBudget()
    for _ in range(5):  # to all depths, two of them would spend it
        with pytest.raises(RequestError, match="it has more than"):
            input_pattern("lark", LARGE, "p", budget)


@given(st.lists(st.sampled_from([
    "start", "a", "B", ":", "|", "(", ")", "[", "]", "?", "*", "+", "~", "2", "..", '"x"', '"y"i',
    "/z/", "->", "\n", "%ignore", "%import", "common", ".", "WS", " ", "\\", '"\\', "{", "// c",
]), max_size=14))  # fmt: skip
def test_any_grammar_is_written_or_refused(pieces: list[str]) -> None:
    try:
        pattern = pattern_of("lark", "start: " + " ".join(pieces))
    except RequestError as error:
        assert error.param == "p"
    else:
        re.compile(pattern)


def test_a_regular_expression_holds_for_all_of_the_input() -> None:
    for pattern in ("a|b", "^(a|b)$", "^a|b$"):
        assert re.fullmatch(pattern_of("regex", pattern), "b")
    assert pattern_of("regex", r"a\$") == r"^(?:a\$)$"
