"""The parameters of sampling, search, form, tools and thinking: their faults, and what a worker
is sent for them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Assist, Search, Structure, Thinking, TokenBias, ToolUse
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.protocol.wire.codec import decode, encode
from lmx.router.schema.requests.chat import parse_chat
from lmx.router.schema.requests.completions import parse_completion

USER = {"role": "user", "content": "hi"}
TYPE = ErrorCode.INVALID_TYPE
VALUE = ErrorCode.INVALID_VALUE
MISSING = ErrorCode.MISSING_PARAMETER


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], **fields}


def tool(name: Any = "get_weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


BAD: list[tuple[dict[str, Any], str, ErrorCode, str]] = [
    # Sampling.
    ({"top_k": 2**31}, "top_k", VALUE, "at most"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x", VALUE, "no token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1", VALUE, "no token id"),
    ({"logit_bias": {" 1": 1}}, "logit_bias. 1", VALUE, "no token id"),
    ({"logit_bias": {"\u0661": 1}}, "logit_bias.\u0661", VALUE, "no token id"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias." + "9" * 20, VALUE, "no token id"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5", TYPE, "a number"),
    ({"logit_bias": {"5": True}}, "logit_bias.5", TYPE, "got true"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias.5", VALUE, "from -100 to 100"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", VALUE, "at most 1024"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]", VALUE, "at least 0"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]", TYPE, "an integer"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids", VALUE, "at most 1024"),
    # Search.
    ({"n": 3, "best_of": 2}, "best_of", VALUE, "less than `n` (3)"),
    ({"early_stopping": True}, "early_stopping", ErrorCode.UNSUPPORTED_VALUE, "got true"),
    # Logprobs.
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", VALUE, "at most 20"),
    ({"top_logprobs": 2}, "top_logprobs", VALUE, "needs `logprobs: true`"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", VALUE, "needs `logprobs: true`"),
    # Speculation.
    (
        {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5},
        "assistant_confidence_threshold", VALUE, "can't be combined",
    ),
    ({"stop": ["a", "b" * 4097]}, "stop[1]", VALUE, "at most 4096 characters"),
    # Form.
    ({"guided_regex": "a" * (2**20 + 1)}, "guided_regex", VALUE, "at most 1048576"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": "b" * 2**20}}}},
        "response_format.json_schema.schema", VALUE, "at most 1048576",
    ),
    ({"response_format": {}}, "response_format.type", MISSING, "required"),
    ({"response_format": {"type": "xml"}}, "response_format.type", VALUE, "'json_schema'"),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema", MISSING, "required",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema", MISSING, "required",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        "response_format.json_schema.schema", TYPE, "an object",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        "response_format.json_schema.name", VALUE, "must match",
    ),
    ({"structured_outputs": {}}, "structured_outputs", MISSING, "one of"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", MISSING, "one of"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", TYPE, "a string"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", VALUE, "at least 1"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", TYPE, "a string"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", TYPE, "a string or an object"),
    (
        {"structured_outputs": {"regex": "a", "grammar": "b"}},
        "structured_outputs.grammar", VALUE, "`structured_outputs.regex`",
    ),
    ({"guided_json": "{"}, "guided_json", VALUE, "not valid JSON"),
    ({"guided_json": "[]"}, "guided_json", VALUE, "an object"),
    ({"guided_json": '{"a":' * 200 + "1" + "}" * 200}, "guided_json", VALUE, "100 levels"),
    (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "guided_regex", VALUE, "can't be combined with `response_format`",
    ),
    ({"grammar": "root ::= x", "json_schema": {}}, "grammar", VALUE, "combined with `json_schema`"),
    ({"json_schema": "[]"}, "json_schema", VALUE, "an object"),
    ({"json_schema": 5}, "json_schema", TYPE, "a string or an object"),
    (
        {"response_format": {"type": "json_object"}, "grammar": "root ::= x"},
        "grammar", VALUE, "can't be combined with `response_format`",
    ),
    (
        {
            "response_format": {
                "type": "json_schema", "schema": {}, "json_schema": {"name": "a", "schema": {}}
            }
        },
        "response_format.schema", VALUE, "can't be combined with `response_format.json_schema`",
    ),
    (
        {"structured_outputs": {"json": {}, "whitespace_pattern": 1}},
        "structured_outputs.whitespace_pattern", TYPE, "a string",
    ),
    # Tools.
    ({"tools": [{"type": "function"}]}, "tools[0].function", MISSING, "required"),
    ({"tools": [{"function": {"name": "a"}}]}, "tools[0].type", MISSING, "required"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", VALUE, "'function'"),
    ({"tools": [tool("")]}, "tools[0].function.name", VALUE, "must match"),
    ({"tools": [tool("a b")]}, "tools[0].function.name", VALUE, "must match"),
    ({"tools": [tool("a\n")]}, "tools[0].function.name", VALUE, "must match"),
    ({"tools": [tool("a" * 65)]}, "tools[0].function.name", VALUE, "must match"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", TYPE, "an object"),
    ({"tools": [tool(), tool()]}, "tools[1].function.name", VALUE, "an earlier tool"),
    ({"tools": [tool(str(i)) for i in range(1025)]}, "tools", VALUE, "at most 1024"),
    ({"tools": [tool()], "tool_choice": "must"}, "tool_choice", VALUE, "'required'"),
    ({"tools": [tool()], "tool_choice": 5}, "tool_choice", TYPE, "a string or an object"),
    ({"tools": [tool()], "tool_choice": {}}, "tool_choice.type", MISSING, "required"),
    (
        {"tools": [tool()], "tool_choice": named("other")},
        "tool_choice.function.name", VALUE, "not one of the `tools`",
    ),
    (
        {"tools": [tool()], "tool_choice": allowed("auto", tool()["function"]["name"], "other")},
        "tool_choice.allowed_tools.tools[1].function.name", VALUE, "not one of the `tools`",
    ),
    (
        {"tools": [tool()], "tool_choice": allowed("auto")},
        "tool_choice.allowed_tools.tools", VALUE, "at least 1",
    ),
    (
        {"tools": [tool()], "tool_choice": allowed("any", "x")},
        "tool_choice.allowed_tools.mode", VALUE, "'required'",
    ),
    (
        {"tools": [tool()], "tool_choice": {"type": "custom", "custom": {"name": "x"}}},
        "tool_choice.type", VALUE, "'function'",
    ),
    ({"tool_choice": "required"}, "tool_choice", VALUE, "no `tools`"),
    ({"tools": [], "tool_choice": "any"}, "tool_choice", VALUE, "no `tools`"),
    ({"tool_choice": named("get_weather")}, "tool_choice", VALUE, "no `tools`"),
    # Thinking.
    ({"reasoning_effort": "most"}, "reasoning_effort", VALUE, "'xhigh'"),
    ({"reasoning_effort": 5}, "reasoning_effort", VALUE, "'low'"),
    ({"think": "most"}, "think", VALUE, "'high' or 'max', got \"most\""),
    ({"think": 1}, "think", TYPE, "a boolean or a string, got 1"),
    (
        {"thinking_budget": 5, "thinking_token_budget": 6},
        "thinking_budget", VALUE, "two names of the budget of the thinking",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "code", "words"), BAD)
def test_faults(fields: dict[str, Any], param: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(chat(**fields))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert words in caught.value.message
    assert len(caught.value.message) < 300


def test_sampling_as_a_worker_is_sent_it() -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "typical_p": 0.7, "seed": -2,
        "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 2,
        "ignore_eos": True, "min_tokens": 3,
    }  # fmt: skip
    _, generate, _ = parse_chat(
        chat(**given, logit_bias={"5": -100, "007": 1.5}, stop_token_ids=[1, 2])
    )
    sampling = generate.sampling
    for name, value in given.items():
        assert getattr(sampling, name) == value, name
    assert sampling.logit_bias == (TokenBias(5, -100.0), TokenBias(7, 1.5))
    assert sampling.stop_token_ids == (1, 2)


SEARCHES: list[tuple[dict[str, Any], Search]] = [
    ({}, Search()),
    ({"n": 3}, Search(n=3, best_of=3)),
    ({"n": 3, "best_of": 3}, Search(n=3, best_of=3)),
    ({"best_of": 4}, Search(best_of=4, beam=True)),
    ({"n": 2, "best_of": 4, "temperature": 0}, Search(n=2, best_of=4, beam=True)),
    ({"n": 2, "best_of": 4, "temperature": 0.1}, Search(n=2, best_of=4)),
    ({"use_beam_search": True, "n": 4}, Search(n=4, best_of=4, beam=True)),
    (
        {"use_beam_search": True, "best_of": 4, "temperature": 1, "length_penalty": -1.5},
        Search(best_of=4, beam=True, length_penalty=-1.5),
    ),
    ({"use_beam_search": False, "length_penalty": 1}, Search()),
]


@pytest.mark.parametrize(("fields", "search"), SEARCHES)
def test_search(fields: dict[str, Any], search: Search) -> None:
    assert parse_chat(chat(**fields))[1].search == search


@pytest.mark.parametrize("ovms", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"best_of": 2, "temperature": 1}])
@pytest.mark.parametrize("length_penalty", [0, 2.5])
def test_a_length_penalty_needs_beams(
    fields: dict[str, Any], length_penalty: float, ovms: bool
) -> None:
    if ovms and "best_of" in fields:
        search = parse_chat(chat(**fields, length_penalty=length_penalty), ovms=True)[1].search
        assert (search.beam, search.length_penalty) == (True, length_penalty)
        return
    for parse in (parse_chat, parse_completion):
        body = chat() if parse is parse_chat else {"model": "m", "prompt": "x"}
        with pytest.raises(RequestError, match="beam") as caught:
            parse(body | fields | {"length_penalty": length_penalty}, ovms=ovms)
        assert (caught.value.code, caught.value.param) == (VALUE, "length_penalty")
        # In /v3 it is the width that asks for beams.
        assert ("`best_of` above 1" in caught.value.message) is ovms
        assert ("use_beam_search" in caught.value.message) is not ovms


@pytest.mark.parametrize(
    ("fields", "search"),
    [
        ({}, Search()),
        ({"n": 3}, Search(n=3, best_of=3)),
        ({"best_of": 1}, Search()),
        ({"best_of": 3}, Search(best_of=3, beam=True)),
        ({"n": 3, "best_of": 3}, Search(n=3, best_of=3, beam=True)),
        ({"n": 2, "best_of": 4, "temperature": 0.7}, Search(n=2, best_of=4, beam=True)),
        ({"n": 2, "best_of": 4, "top_p": 0.5}, Search(n=2, best_of=4, beam=True)),
    ],
)
def test_on_v3_best_of_is_the_width_of_a_beam_search(
    fields: dict[str, Any], search: Search
) -> None:
    assert parse_chat(chat(**fields), ovms=True)[1].search == search
    completion = {"model": "m", "prompt": "x", **fields}
    assert parse_completion(completion, ovms=True)[1][0].search == search


SCHEMA = {"type": "object", "properties": {"b": {"const": None}, "a": {}}}
SCHEMA_JSON = '{"type":"object","properties":{"b":{"const":null},"a":{}}}'

STRUCTURES: list[tuple[dict[str, Any], Structure | None]] = [
    ({}, None),
    ({"response_format": {"type": "text"}}, None),
    (
        {"response_format": {"type": "json_object"}},
        Structure(StructureKind.JSON_OBJECT, "", "response_format"),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
            }
        },
        Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "response_format.json_schema.schema"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA}, "response_format": {"type": "text"}},
        Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "structured_outputs.json"),
    ),
    (
        {"structured_outputs": {"json_object": True}},
        Structure(StructureKind.JSON_OBJECT, "", "structured_outputs.json_object"),
    ),
    (
        {"structured_outputs": {"regex": "a+", "json_object": False}},
        Structure(StructureKind.REGEX, "a+", "structured_outputs.regex"),
    ),
    (
        {"structured_outputs": {"choice": ["a", "é"]}},
        Structure(StructureKind.CHOICE, '["a","é"]', "structured_outputs.choice"),
    ),
    (
        {"structured_outputs": {"grammar": "root ::= x"}},
        Structure(StructureKind.GRAMMAR, "root ::= x", "structured_outputs.grammar"),
    ),
    (
        {"guided_json": SCHEMA_JSON},
        Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "guided_json"),
    ),
    ({"guided_regex": "a"}, Structure(StructureKind.REGEX, "a", "guided_regex")),
    ({"guided_choice": ["x"]}, Structure(StructureKind.CHOICE, '["x"]', "guided_choice")),
    ({"guided_grammar": "g"}, Structure(StructureKind.GRAMMAR, "g", "guided_grammar")),
    # Together's, Fireworks' and llama.cpp's way to give a schema.
    *(
        (
            {"response_format": {"type": kind, "schema": SCHEMA}},
            Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "response_format.schema"),
        )
        for kind in ("json_object", "json_schema")
    ),
    ({"response_format": {"type": "text", "schema": SCHEMA}}, None),
    # llama.cpp's own fields.
    ({"grammar": "root ::= x"}, Structure(StructureKind.GRAMMAR, "root ::= x", "grammar")),
    ({"grammar": ""}, None),
    ({"json_schema": SCHEMA}, Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "json_schema")),
    (
        {"json_schema": SCHEMA_JSON},
        Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "json_schema"),
    ),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
        Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "guided_json", " ?"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": ""}},
        Structure(StructureKind.JSON_SCHEMA, SCHEMA_JSON, "structured_outputs.json", ""),
    ),
    ({"guided_whitespace_pattern": " ?"}, None),
]


@pytest.mark.parametrize(("fields", "structure"), STRUCTURES)
def test_completions_take_the_same_forms(
    fields: dict[str, Any], structure: Structure | None
) -> None:
    assert parse_completion({"prompt": "hi", **fields})[1][0].structure == structure


@pytest.mark.parametrize(("fields", "structure"), STRUCTURES)
def test_structure(fields: dict[str, Any], structure: Structure | None) -> None:
    assert parse_chat(chat(**fields))[1].structure == structure


PARAMETERS = {"type": "object", "properties": {"unit": {"enum": ["c", None], "default": None}}}
FULL = tool(description="d", parameters=PARAMETERS, strict=False)

TOOL_USES: list[tuple[dict[str, Any], ToolUse | None]] = [
    ({}, None),
    ({"tools": [], "tool_choice": "none"}, None),
    ({"tools": [FULL]}, ToolUse((FULL,))),
    ({"tools": [FULL], "tool_choice": "auto"}, ToolUse((FULL,))),
    ({"tools": [FULL], "tool_choice": "none"}, ToolUse((FULL,), ToolChoice.NONE)),
    ({"tools": [FULL], "tool_choice": "required"}, ToolUse((FULL,), ToolChoice.REQUIRED)),
    ({"tools": [FULL], "tool_choice": "any"}, ToolUse((FULL,), ToolChoice.REQUIRED)),
    (
        {"tools": [FULL, tool("b")], "tool_choice": named("b")},
        ToolUse((FULL, tool("b")), ToolChoice.REQUIRED, "b"),
    ),
    (
        {"tools": [FULL, tool("b")], "tool_choice": allowed("required", "b")},
        ToolUse((FULL, tool("b")), ToolChoice.REQUIRED, allowed=("b",)),
    ),
    (
        {"tools": [FULL, tool("b")], "tool_choice": allowed("auto", "b")},
        ToolUse((FULL, tool("b")), allowed=("b",)),
    ),
    (
        {"tools": [tool("a.b-C_1", description=None)], "parallel_tool_calls": False},
        ToolUse((tool("a.b-C_1"),), parallel=False),
    ),
    ({"tools": [FULL], "parallel_tool_calls": True}, ToolUse((FULL,))),
]


@pytest.mark.parametrize(("fields", "use"), TOOL_USES)
def test_tools(fields: dict[str, Any], use: ToolUse | None) -> None:
    assert parse_chat(chat(**fields))[1].tool_use == use


THINKING: list[tuple[dict[str, Any], Thinking]] = [
    ({}, Thinking()),
    ({"reasoning_effort": "high"}, Thinking(effort="high")),
    ({"reasoning_effort": "none"}, Thinking(effort="none", enabled=False)),
    ({"enable_thinking": True, "reasoning_effort": "none"}, Thinking("none", enabled=True)),
    ({"enable_thinking": False}, Thinking(enabled=False)),
    ({"think": "max"}, Thinking("max", param="think")),
    ({"think": True}, Thinking(enabled=True)),
    ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(enabled=False)),
    (
        {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"},
        Thinking("none", enabled=True),
    ),
    (
        {"chat_template_kwargs": {"thinking": False}, "reasoning_effort": "high"},
        Thinking("high", enabled=False),
    ),
    (
        {"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True},
        Thinking(enabled=True),
    ),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, Thinking()),
    ({"thinking_budget": 0}, Thinking(budget_tokens=0)),
    ({"thinking_token_budget": 7}, Thinking(budget_tokens=7)),
    ({"thinking_token_budget": 7, "thinking_budget": 7}, Thinking(budget_tokens=7)),
]


@pytest.mark.parametrize(("fields", "thinking"), THINKING)
def test_thinking(fields: dict[str, Any], thinking: Thinking) -> None:
    assert parse_chat(chat(**fields))[1].thinking == thinking


def test_the_rest_of_what_a_worker_is_sent() -> None:
    _, generate, _ = parse_chat(chat())
    assert (generate.top_logprobs, generate.parse, generate.echo) == (None, True, False)
    assert (generate.assist, generate.cache_salt) == (Assist(), "")
    assert parse_chat(chat(logprobs=True))[1].top_logprobs == 0
    assert parse_chat(chat(logprobs=True, top_logprobs=20))[1].top_logprobs == 20
    assert parse_chat(chat(top_logprobs=0))[1].top_logprobs is None
    assert parse_chat(chat(cache_salt="é"))[1].cache_salt == "é"
    assert parse_chat(chat(num_assistant_tokens=3, max_ngram_size=2))[1].assist == Assist(
        num_assistant_tokens=3, max_ngram_size=2
    )
    assert parse_chat(chat(assistant_confidence_threshold=0))[1].assist == Assist(
        assistant_confidence_threshold=0.0
    )


MIXED = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(-1, 2**31 - 1),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "logit_bias": st.dictionaries(
            st.integers(0, 2**31 - 1).map(str), st.floats(-100, 100), max_size=4
        ),
        "stop": st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=4),
        "n": st.integers(1, 128),
        "tools": st.lists(
            st.from_regex(r"\A[a-zA-Z0-9_.-]{1,64}\Z"), min_size=1, max_size=3, unique=True
        ).map(lambda names: [tool(name, parameters=PARAMETERS) for name in names]),
        "structured_outputs": st.sampled_from([{"json": SCHEMA}, {"choice": ["a"]}]),
        "chat_template_kwargs": st.just({"a": [1, None]}),
    },
)


@given(MIXED)
def test_what_is_accepted_survives_the_wire(fields: dict[str, Any]) -> None:
    _, generate, _ = parse_chat(chat(**fields))
    assert decode(encode(generate)).message == generate
