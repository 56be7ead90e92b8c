"""What a chat request may hold: each fault gives the right param, code and words."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.http.bodies.json_body import MAX_DEPTH, parse_object
from lmx.router.schema import requests
from lmx.router.schema.requests.chat import ChatRequest, parse_chat
from lmx.router.schema.requests.completions import CompletionRequest
from lmx.router.schema.requests.conversation.media import KINDS
from lmx.router.schema.requests.responses.responses import ResponsesRequest
from lmx.router.schema.requests.unsupported import CHAT
from lmx.router.schema.validation import Strict, param_path, short, validated

USER = {"role": "user", "content": "hi"}
TYPE = ErrorCode.INVALID_TYPE
VALUE = ErrorCode.INVALID_VALUE
MISSING = ErrorCode.MISSING_PARAMETER
UNSUPPORTED = ErrorCode.UNSUPPORTED_VALUE


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER]} | fields


def with_message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, fields]}


def with_part(part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}


BAD: list[tuple[dict[str, Any], str, ErrorCode, str]] = [
    ({"messages": None}, "messages", TYPE, "an array"),
    ({"messages": ["hi"]}, "messages[0]", TYPE, "an object"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING, "required"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1000}] * 21},
        "messages", VALUE, "at most 20000 parts",
    ),
    (with_message(role="robot", content="x"), "messages[1].role", VALUE, "'assistant'"),
    (with_message(role=5, content="x"), "messages[1].role", VALUE, "5"),
    (with_message(role="user"), "messages[1].content", MISSING, "required"),
    (with_message(role="user", content=5), "messages[1].content", TYPE, "a string or an array"),
    (with_message(role="user", content={}), "messages[1].content", TYPE, "a string or an array"),
    (with_message(role="user", content="x", name=1), "messages[1].name", TYPE, "a string"),
    (
        with_message(role="user", content="x", tool_calls=[
            {"id": "1", "function": {"name": "f", "arguments": "{}"}}
        ]),
        "messages[1].tool_calls", VALUE, "'assistant'",
    ),
    (with_message(role="tool", content="42"), "messages[1].tool_call_id", MISSING, "the id of"),
    (
        with_message(role="tool", content="42", tool_call_id=7),
        "messages[1].tool_call_id", TYPE, "a string",
    ),
    (
        with_message(role="assistant", tool_calls=[{"id": "1", "function": {
            "name": "f", "arguments": [1]}}]),
        "messages[1].tool_calls[0].function.arguments", TYPE, "a string",
    ),
    (
        with_message(role="assistant", tool_calls=[{"id": "1", "function": {"name": "f"}}]),
        "messages[1].tool_calls[0].function.arguments", MISSING, "required",
    ),
    (with_part("text"), "messages[0].content[1]", TYPE, "an object"),
    (with_part({"text": "x"}), "messages[0].content[1].type", MISSING, "required"),
    (with_part({"type": "text"}), "messages[0].content[1].text", MISSING, "required"),
    (with_part({"type": "text", "text": 1}), "messages[0].content[1].text", TYPE, "a string"),
    (with_part({"type": "hologram"}), "messages[0].content[1].type", UNSUPPORTED, "image_url"),
    (with_part({"type": 5}), "messages[0].content[1].type", UNSUPPORTED, "got 5"),
    *(
        (with_part({"type": kind, kind: {}}), f"messages[0].content[1].{kind}", MISSING, "`url`")
        for kind in KINDS
    ),
    *(
        (with_part({"type": kind, kind: {"url": "a", "data": "b"}}),
         f"messages[0].content[1].{kind}", VALUE, "one of the two")
        for kind in KINDS
    ),
    (with_part({"type": "image_url", "image_url": ""}), "messages[0].content[1].image_url",
     VALUE, "must not be empty"),
    (with_part({"type": "image_url", "image_url": {"url": 5}}),
     "messages[0].content[1].image_url.url", TYPE, "a string"),
    (with_part({"type": "image_url", "image_url": {"url": "a", "detail": "fine"}}),
     "messages[0].content[1].image_url.detail", VALUE, "'auto', 'low', 'high' or 'original'"),
    (with_part({"type": "image_url", "image_url": "a", "min_pixels": 9, "max_pixels": 8}),
     "messages[0].content[1].min_pixels", VALUE, "more than"),
    (with_part({"type": "video_url", "video_url": "a", "max_frames": 0}),
     "messages[0].content[1].max_frames", VALUE, "at least 1"),
    (chat(stream_options={"include_usage": 1}), "stream_options.include_usage", TYPE, "a boolean"),
    (chat(temperature=-0.1), "temperature", VALUE, "at least 0, got -0.1"),
    (chat(temperature=2.1), "temperature", VALUE, "at most 2, got 2.1"),
    (chat(temperature="1"), "temperature", TYPE, 'a number, got "1"'),
    (chat(temperature=True), "temperature", TYPE, "a number, got true"),
    (chat(max_tokens=0), "max_tokens", VALUE, "at least 1"),
    (chat(max_tokens=-2), "max_tokens", VALUE, "at least -1, got -2"),
    (chat(max_completion_tokens=0), "max_completion_tokens", VALUE, "at least 1"),
    (chat(max_tokens=5, max_completion_tokens=6), "max_tokens", VALUE, "differ"),
    (chat(stop=5), "stop", TYPE, "a string or an array"),
    (chat(verbosity="loud"), "verbosity", VALUE, "'low', 'medium' or 'high'"),
    (chat(stop=["a", 5]), "stop[1]", TYPE, "a string"),
    (chat(stop=["a"] * 65), "stop", VALUE, "at most 64 elements, got 65"),
    (chat(max_tokens=4, min_tokens=5), "min_tokens", VALUE, "more than the answer may have"),
    (
        chat(stream=True, stream_options={"continuous_usage_stats": True}),
        "stream_options.continuous_usage_stats", VALUE, "needs `include_usage: true`",
    ),
    (chat(stream_options={}), "stream_options", VALUE, "`stream: true` only"),
    (chat(detokenize=False), "detokenize", UNSUPPORTED, "got false"),
    (
        chat(chat_template_kwargs={"a": [{}, {"b": 10**30}]}),
        "chat_template_kwargs.a[1].b", VALUE, "within 64 bits, got 1000000",
    ),
    (
        chat(response_format={"type": "json_schema", "json_schema": {
            "schema": {"maximum": float("inf")}}}),
        "response_format.json_schema.schema.maximum", VALUE, "too large",
    ),
    (
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {
            "minimum": -(2**64)}}}]),
        "tools[0].function.parameters.minimum", VALUE, "-18446744073709551616",
    ),
    (chat(guided_json={"a": 2**64}), "guided_json.a", VALUE, "within 64 bits"),
    (chat(seed=10**400), "seed", VALUE, "at most"),
    (chat(temperature=10**400), "temperature", TYPE, "a number"),
    (chat(top_p=float("inf")), "top_p", VALUE, "too large"),
    (chat(logit_bias={"1": float("-inf")}), "logit_bias.1", VALUE, "too large"),
    (chat(store=10**30), "store", TYPE, "got 1000000"),
    (chat(keep_alive=float("inf")), "keep_alive", VALUE, "duration"),
    (chat(keep_alive=10**400), "keep_alive", VALUE, "duration"),
    (chat(ttl=10**400), "ttl", VALUE, "at most"),
    (chat(bad_words=[""]), "bad_words[0]", VALUE, "must not be empty"),
    (chat(bad_words=["x"] * 257), "bad_words", VALUE, "at most 256"),
    (chat(allowed_token_ids=[1, -1]), "allowed_token_ids[1]", VALUE, "at least 0"),
    (chat(truncate_prompt_tokens=0), "truncate_prompt_tokens", VALUE, "got 0"),
    (
        chat(continue_final_message=True, add_generation_prompt=True),
        "continue_final_message",
        VALUE,
        "can't be combined",
    ),
    (
        chat(continue_final_message=True, messages=[{"role": "user", "content": ""}]),
        "messages[0]",
        VALUE,
        "nothing to continue",
    ),
    (chat(functions=[{}]), "functions[0].name", MISSING, "required"),
    (chat(functions=[{"name": "f"}], function_call="f"), "function_call", VALUE, "none"),
    (chat(modalities=["text", "audio"]), "modalities", UNSUPPORTED, '["text"]'),
    (chat(prompt_logprobs=0, stream=True), "prompt_logprobs", VALUE, "can't be combined"),
    (chat(skip_special_tokens=1), "skip_special_tokens", UNSUPPORTED, "got 1"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "code", "words"), BAD)
def test_faults(body: dict[str, Any], param: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert words in caught.value.message
    assert caught.value.message.startswith(f"`{param}`") or code is VALUE


GOOD: list[dict[str, Any]] = [
    chat(),
    chat(model=None, stream=None, stop=None, temperature=None, n=None, tools=None),
    chat(temperature=0, top_p=1, seed=-1, n=1, stop=[], max_tokens=3, max_completion_tokens=3),
    chat(temperature=2, presence_penalty=0, frequency_penalty=0.0, logit_bias={}),
    chat(tools=[], tool_choice="auto", response_format={"type": "text"}, logprobs=False),
    chat(include_stop_str_in_output=False, stream=True),
    chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": False}),
    chat(best_of=1, top_k=-1, user="u", metadata={"a": "b"}, unheard_of=[1]),
    chat(fps=1.0, use_audio_in_video=True, service_tier="auto", safety_identifier="u"),
    chat(prompt_cache_key="k", prompt_cache_retention="24h", store=False, detokenize=True),
    chat(messages=[{"role": "developer", "content": "be brief"}, USER]),
    chat(chat_template_kwargs={"a": [2**64 - 1, -(2**63), 1e308, "\0"]}, unheard_of=10**400),
    with_message(role="assistant", content=None),
    with_message(role="assistant"),
    with_message(role="tool", content="42", tool_call_id="call_1"),
    with_part({"type": "text", "text": "", "cache_control": {}}),
    with_message(role="assistant", content="x", refusal=None, annotations=[], audio=None),
]


@pytest.mark.parametrize("body", GOOD)
def test_what_is_allowed(body: dict[str, Any]) -> None:
    parse_chat(body)


def test_limits_and_stops() -> None:
    request, *_ = parse_chat(chat(max_completion_tokens=5, stop="x"))
    assert (request.token_limit, request.stop_texts) == (5, ("x",))
    assert parse_chat(chat(max_tokens=4))[1].max_tokens == 4
    assert parse_chat(chat())[1].max_tokens is None


def test_a_seed_of_minus_one_is_none() -> None:
    assert parse_chat(chat(seed=-1))[1].sampling.seed is None
    assert parse_chat(chat(seed=-2))[1].sampling.seed == -2


@pytest.mark.parametrize(
    ("ovms", "stream", "asked", "included"),
    [
        (False, False, None, False), (False, True, None, False), (False, True, True, True),
        (True, False, None, False), (True, True, None, True), (True, False, True, True),
        (True, False, False, False), (True, True, True, True),
    ],
)  # fmt: skip
def test_stop_strings_in_the_answer(
    ovms: bool, stream: bool, asked: bool | None, included: bool
) -> None:
    body = chat(stream=stream, include_stop_str_in_output=asked)
    assert parse_chat(body, ovms=ovms)[1].include_stop is included


def test_on_v3_a_stream_can_t_leave_the_stop_string_out() -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(chat(stream=True, include_stop_str_in_output=False), ovms=True)
    assert caught.value.param == "include_stop_str_in_output"


def test_every_harmless_value_passes_and_is_no_wider_than_meant() -> None:
    for name, values in CHAT.items():
        for value in values:
            parse_chat(chat(**{name: value}))
        with pytest.raises(RequestError) as caught:
            parse_chat(chat(**{name: {"an": "object"}}))
        assert caught.value.param == name


def test_history_with_calls_and_their_results() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    _, generate, _ = parse_chat({"messages": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": []},
    ]})  # fmt: skip
    assert generate.messages == (
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm"},
    )


def test_an_error_repeats_little_of_a_large_value() -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(chat(stop={"x": "y" * 100_000}))
    assert len(caught.value.message) < 300
    assert len(short("é" * 100_000)) < 80


def lists_of(schema: object) -> Iterator[dict[str, Any]]:
    """The lists in a schema, as pydantic checks it."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for value in schema.values():
            yield from lists_of(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from lists_of(value)


def test_every_list_has_a_limit_and_a_long_one_ends_at_its_first_fault() -> None:
    """pydantic describes each fault, which takes seconds and gigabytes of many."""
    for part in pkgutil.walk_packages(requests.__path__, f"{requests.__name__}."):
        importlib.import_module(part.name)
    found = 0
    left = list(Strict.__subclasses__())
    while left:
        model = left.pop()
        left += model.__subclasses__()
        model.model_rebuild()
        for one in lists_of(model.__pydantic_core_schema__):
            found += 1
            most = one.get("max_length")
            assert most is not None and (most <= 1024 or one.get("fail_fast")), (model, one)
    assert found > 100


def test_paths() -> None:
    assert (
        param_path(("messages", 2, "content", "<list>", 0, "type")) == "messages[2].content[0].type"
    )
    assert param_path(("stop", "<text>")) == "stop"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"a": 1, "a": 1}', 'key "a" is there twice'),
        (b'{"a": [{"b": {"x": 1, "\\u0078": 2}}]}', 'key "x" is there twice'),
        (b'{"' + b"k" * 5000 + b'": 1, "' + b"k" * 5000 + b'": 1}', "is there twice"),
        (b'{"a": Infinity}', "not valid JSON"),
        (b'{"a": -NaN}', "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number out of range"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'{"a": "\\ud800x"}', "surrogate"),
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        ('{"a": "é"}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": "\xc3"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": "\x01"}', "control character"),
        (b"{'a': 1}", "key must be a string"),
        (b'{"a": 1,}', "trailing comma"),
        (b'{"a": 01}', "invalid number"),
        (b"{} {}", "trailing characters"),
        (b" \n ", "empty"),
        (b'{"a": tru', "line 1 column 9"),
    ],
)
def test_bytes_that_are_no_json_object(payload: bytes, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(payload)
    assert caught.value.code is ErrorCode.INVALID_JSON
    assert words in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b'{"a": "\\u0000\\ud83d\\ude00"}', "\0\U0001f600"),
        (b'{"a": 123456789012345678901234567890}', 123456789012345678901234567890),
        (b'{"a": 1e999}', float("inf")),
        (b'{"a": {"": [], "b": [{}]}}', {"": [], "b": [{}]}),
    ],
)
def test_bytes_that_are_odd_and_parse(payload: bytes, value: object) -> None:
    assert parse_object(payload) == {"a": value}


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def test_depth_is_limited_and_breadth_is_not() -> None:
    parse_object(nested(MAX_DEPTH))
    with pytest.raises(RequestError) as caught:
        parse_object(nested(MAX_DEPTH + 1))
    assert caught.value.code is ErrorCode.INVALID_JSON
    parse_object(b'{"a":[' + b"[],{}," * 1000 + b"1]}")


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_a_request_error(payload: bytes) -> None:
    try:
        parse_object(payload)
    except RequestError as error:
        assert error.code in {ErrorCode.INVALID_JSON, ErrorCode.INVALID_TYPE}


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest, ResponsesRequest])
@pytest.mark.parametrize(
    ("metadata", "param", "why"),
    [
        ({"a": 5}, "metadata.a", "must be a string, got 5"),
        ({str(n): "x" for n in range(17)}, "metadata", "must hold at most 16 elements, got 17."),
        ({str(n): n for n in range(1_000)}, "metadata", "16 elements, got 1000"),
        ({"k" * 65: "x"}, "metadata." + "k" * 40, "a name that must hold at most 64 characters"),
        ({"a": "x" * 513}, "metadata.a", "must hold at most 512 characters"),
    ],
)
def test_metadata_have_openai_s_limits(
    schema: type[BaseModel], metadata: dict[str, Any], param: str, why: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
    if schema is ResponsesRequest:
        del body["prompt"]
    most = {"k" * 63 + chr(97 + n): "x" * 512 for n in range(16)}
    for taken in (most, {}, None):
        validated(schema, {**body, "metadata": taken})
    with pytest.raises(RequestError) as caught:
        validated(schema, {**body, "metadata": metadata})
    assert caught.value.param is not None and caught.value.param.startswith(param)
    assert why in caught.value.message
