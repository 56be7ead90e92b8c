"""What a request of the Messages API becomes: a conversation, tools, and errors that name the
field."""

from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate, Thinking
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.router.schema.requests.anthropic.messages import parse_count, parse_messages

USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def body(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": list(turns) or [USER], **fields}


def generate(*turns: dict[str, Any], **fields: Any) -> Generate:
    return parse_messages(body(*turns, **fields))[1]


def messages_of(*turns: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return list(generate(*turns, **fields).messages or ())


def fault(*turns: dict[str, Any], **fields: Any) -> tuple[ErrorCode, str | None]:
    with pytest.raises(RequestError) as caught:
        parse_messages(body(*turns, **fields))
    return caught.value.code, caught.value.param


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": one} for one in texts]


def test_a_conversation_with_tools_and_thoughts() -> None:
    turns = (
        {"role": "user", "content": text("What", "weather?")},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Ask.", "signature": "x"},
                {"type": "redacted_thinking", "data": "abc"},
                *text("Let me see."),
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "c2", "name": "get_weather", "input": {"é": -(2**64)}},
            ],
        },
        {
            "role": "user",
            "content": [
                *text("And?"),
                {"type": "tool_result", "tool_use_id": "c1", "content": text("Rain", "and wind")},
                {"type": "tool_result", "tool_use_id": "c2", "content": "none", "is_error": True},
            ],
        },
    )
    made = messages_of(*turns, system=text("Be kind.", "Be short."), tools=[TOOL])

    def call(call_id: str, arguments: str) -> dict[str, Any]:
        function = {"name": "get_weather", "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    assert made == [
        {"role": "system", "content": "Be kind.\nBe short."},
        {"role": "user", "content": "What\nweather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Ask.",
            "tool_calls": [
                call("c1", '{"city":"Oslo"}'),
                call("c2", '{"é":-18446744073709551616}'),
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Rain\nand wind"},
        {"role": "tool", "tool_call_id": "c2", "content": "Error: none"},
        {"role": "user", "content": "And?"},
    ]


def test_turns_of_one_role_are_one_turn() -> None:
    made = messages_of(
        {"role": "user", "content": "one"},
        {"role": "user", "content": text("two")},
        {"role": "assistant", "content": "Hel"},
        {"role": "assistant", "content": text("lo")},
        USER,
    )
    assert [message["content"] for message in made] == ["one\ntwo", "Hello", "hi"]


def test_documents_are_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "All about it."}
    blocks = {"type": "content", "content": text("a", "b")}
    made = messages_of(
        {
            "role": "user",
            "content": [
                {"type": "document", "source": source, "title": "It", "context": "old"},
                {"type": "document", "source": blocks},
                *text("Sum up."),
            ],
        }
    )
    assert made[0]["content"] == (
        "<document>\n<title>It</title>\n<context>old</context>\nAll about it.\n</document>\n"
        "<document>\na\nb\n</document>\nSum up."
    )


def test_a_document_may_have_images() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://a.example/b.png"}}
    source = {"type": "content", "content": [*text("a"), image, *text("", "b")]}
    document = {"type": "document", "source": source, "title": "It"}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [document]}
    parts = [
        {"type": "text", "text": "<document>\n<title>It</title>\na"},
        {"type": "image", "media": 0},
        {"type": "text", "text": "b\n</document>"},
    ]
    place = "source.content[1].source.url"
    for blocks, path in (
        ([document], f"messages[0].content[0].{place}"),
        ([result], f"messages[0].content[0].content[0].{place}"),
    ):
        _, made, media = parse_messages(body({"role": "user", "content": blocks}))
        assert made.messages is not None and made.messages[0]["content"] == parts
        assert [one.param for one in media] == [path]


def test_search_results_are_documents() -> None:
    found = {
        "type": "search_result",
        "source": "https://a.example/faq",
        "title": "FAQ",
        "content": text("one", "two"),
        "citations": {"enabled": True},
    }
    bare = {"type": "search_result", "source": "s", "content": []}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [bare, *text("1 found")]}
    call = {"type": "tool_use", "id": "c", "name": "search", "input": {}}
    turns = (
        {"role": "user", "content": [found, *text("Sum up.")]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    )
    wanted, made, _ = parse_messages(body(*turns))
    assert wanted.left_out == []
    contents = [message["content"] for message in made.messages or ()]
    assert contents == [
        "<document>\n<title>FAQ</title>\n<source>https://a.example/faq</source>\none\ntwo\n"
        "</document>\nSum up.",
        "",
        "<document>\n<source>s</source>\n\n</document>\n1 found",
    ]


def test_an_answer_continues_with_the_assistant_s_turn() -> None:
    assert not generate(USER).continue_final_message
    begun = generate(USER, {"role": "assistant", "content": "The best is ("})
    assert begun.continue_final_message and not begun.add_generation_prompt
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    for content in ("", [], [call]):
        last = {"role": "assistant", "content": content}
        assert fault(USER, last) == (ErrorCode.INVALID_VALUE, "messages")


def test_tools() -> None:
    use = generate(tools=[TOOL, {"type": "custom", **TOOL, "name": "n" * 128}]).tool_use
    assert use is not None and use.choice is ToolChoice.AUTO and use.parallel
    assert use.tools[0]["function"]["parameters"] == TOOL["input_schema"]
    choices: list[tuple[dict[str, Any], Any]] = [
        ({"type": "auto", "disable_parallel_tool_use": True}, (ToolChoice.AUTO, None, False)),
        ({"type": "any"}, (ToolChoice.REQUIRED, None, True)),
        ({"type": "none"}, (ToolChoice.NONE, None, True)),
        ({"type": "tool", "name": "get_weather"}, (ToolChoice.REQUIRED, "get_weather", True)),
    ]
    for choice, wanted in choices:
        use = generate(tools=[TOOL], tool_choice=choice).tool_use
        assert use is not None and (use.choice, use.function, use.parallel) == wanted


def test_what_only_anthropic_can_run_is_left_out_and_named() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    searched = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    turns = (USER, {"role": "assistant", "content": [searched, *text("So.")]}, USER)
    wanted, made, _ = parse_messages(body(*turns, tools=[hosted, TOOL]))
    assert wanted.left_out == ["tools.web_search_20250305", "content.server_tool_use"]
    assert made.tool_use is not None and len(made.tool_use.tools) == 1
    assert generate(tools=[hosted]).tool_use is None
    assert fault(tools=[hosted], tool_choice={"type": "any"})[1] == "tool_choice"
    named = {"type": "tool", "name": "web_search"}
    assert fault(tools=[hosted, TOOL], tool_choice=named)[1] == "tool_choice.name"


def test_a_block_that_is_new_to_lmx_does_not_end_a_session() -> None:
    found = {"type": "tool_reference", "tool_name": "read_file"}
    inner = [found, {"type": "of_next_year", "data": 1}, *text("2 found")]
    results = [{"type": "tool_result", "tool_use_id": "t", "content": inner}]
    called = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    turns = (
        USER,
        {"role": "assistant", "content": [{"type": "of_this_year"}, called]},
        {"role": "user", "content": results},
    )
    wanted, made, _ = parse_messages(body(*turns, tools=[TOOL]))
    assert wanted.left_out == ["content.of_this_year", "content.of_next_year"]
    assert made.messages is not None
    assert made.messages[-1]["content"] == "read_file\n2 found"


def test_a_pdf_is_refused_as_a_pdf() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    document = {"type": "document", "source": source, "title": "Plan"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [document]}
    for blocks, path in (([document], "content[0]"), ([result], "content[0].content[0]")):
        with pytest.raises(RequestError, match="a PDF, which lmx does not read") as caught:
            parse_messages(body({"role": "user", "content": blocks}))
        assert caught.value.param == f"messages[0].{path}.source"


def test_how_the_model_thinks() -> None:
    enabled = {"type": "enabled", "budget_tokens": 50}
    effort = {"effort": "max"}
    for fields, effort_word, thinks, budget in (
        ({}, None, None, None),
        ({"thinking": enabled}, None, True, 50),
        ({"thinking": {"type": "adaptive"}}, None, True, None),
        ({"thinking": {"type": "disabled"}}, None, False, None),
        ({"output_config": effort}, "max", None, None),
    ):
        wanted = Thinking(effort_word, thinks, budget, "output_config.effort")
        assert generate(**fields).thinking == wanted
    too_much = {"type": "enabled", "budget_tokens": 100}
    assert fault(thinking=too_much) == (ErrorCode.INVALID_VALUE, "thinking.budget_tokens")


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_the_form_of_the_answer(name: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    fields = {name: {"format": form} if name == "output_config" else form}
    structure = generate(**fields).structure
    assert structure is not None and structure.kind is StructureKind.JSON_SCHEMA
    assert structure.text == '{"type":"object"}'
    both = {"output_config": {"format": form}, "output_format": form}
    assert fault(**both) == (ErrorCode.INVALID_VALUE, "output_format")


def test_stops_and_sampling() -> None:
    made = generate(stop_sequences=["", "END", *(f"s{n}" for n in range(62))], top_k=5, top_p=0.5)
    assert len(made.stop) == 63 and made.stop[0] == "END"
    assert (made.sampling.top_k, made.sampling.top_p, made.sampling.temperature) == (5, 0.5, None)
    assert generate(max_tokens=0).max_tokens == 0
    assert fault(stop_sequences=["x"] * 65)[1] == "stop_sequences"


BLOCK = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": None}, ErrorCode.INVALID_TYPE, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, ErrorCode.INVALID_VALUE,
         "messages[0].role"),
        ({"messages": [{"role": "user"}]}, ErrorCode.MISSING_PARAMETER, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, ErrorCode.INVALID_TYPE,
         "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         ErrorCode.INVALID_TYPE, f"{BLOCK}.source"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]},
         ErrorCode.UNSUPPORTED_VALUE, BLOCK),
        ({"messages": [{"role": "user", "content": [
            {"type": "container_upload", "file_id": "file_1"}]}]},
         ErrorCode.UNSUPPORTED_VALUE, BLOCK),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         ErrorCode.MISSING_PARAMETER, f"{BLOCK}.tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
         ErrorCode.INVALID_VALUE, BLOCK),
        ({"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [float("inf")]}}]}]},
         ErrorCode.INVALID_VALUE, f"{BLOCK}.input.a[0]"),
        ({"messages": [{"role": "assistant", "content": [
            {"type": "tool_result", "tool_use_id": "x"}]}]}, ErrorCode.INVALID_VALUE, BLOCK),
        ({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64", "data": "x"}}]}]},
         ErrorCode.UNSUPPORTED_VALUE, f"{BLOCK}.source"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, ErrorCode.INVALID_TYPE, BLOCK),
        ({"tools": [{"name": "f"}]}, ErrorCode.MISSING_PARAMETER, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, ErrorCode.INVALID_VALUE, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, ErrorCode.MISSING_PARAMETER,
         "tool_choice.name"),
        ({"tool_choice": {"type": "required"}}, ErrorCode.INVALID_VALUE, "tool_choice.type"),
        ({"thinking": {"type": "on"}}, ErrorCode.INVALID_VALUE, "thinking.type"),
        ({"output_format": {"type": "json_schema"}}, ErrorCode.MISSING_PARAMETER,
         "output_format.schema"),
    ],
)  # fmt: skip
def test_errors_name_the_field(fields: dict[str, Any], code: ErrorCode, param: str) -> None:
    assert fault(**fields) == (code, param)


def test_counting_takes_the_same_prompt() -> None:
    fields = {"system": "Be kind.", "tools": [TOOL], "thinking": {"type": "disabled"}}
    asked = body(USER, {"role": "assistant", "content": "So"}, **fields)
    made, counted = parse_messages(asked)[1], parse_count(asked)[1]
    assert counted.messages == made.messages and counted.tool_use == made.tool_use
    assert counted.thinking == made.thinking
    assert counted.continue_final_message and not counted.add_generation_prompt
