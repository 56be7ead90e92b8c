"""Through real processes: what no grammar enforces is checked when an answer is whole."""

import json
from typing import Any

import pytest

from tests.support.rigs.rig import Rig, ask, http

DISTINCT = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
EITHER = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
GOOD = ["[1,", " 2]"]
BAD = ["[1,", " 1]"]


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


async def answered(server: Rig, content: dict[str, Any], **settings: Any) -> tuple[int, Any]:
    body = ask("alpha", content, stream=False, response_format=form(DISTINCT), **settings)
    async with (
        http() as session,
        session.post(f"{server.url}/chat/completions", json=body) as response,
    ):
        return response.status, await response.json()


async def events(server: Rig, content: dict[str, Any], **settings: Any) -> list[Any]:
    body = ask("alpha", content, stream=True, response_format=form(DISTINCT), **settings)
    async with (
        http() as session,
        session.post(f"{server.url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        return [line[6:].strip() async for line in response.content if line.startswith(b"data: ")]


async def test_a_good_answer_comes_as_ever(server: Rig) -> None:
    status, body = await answered(server, {"pieces": GOOD}, n=2, logprobs=True)
    assert status == 200
    for choice in body["choices"]:
        assert (choice["message"]["content"], choice["finish_reason"]) == ("[1, 2]", "stop")
        assert len(choice["logprobs"]["content"]) == 2
    assert body["usage"]["completion_tokens"] == 4
    assert "warnings" not in body


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"seed": 5, "n": 2}])
async def test_another_answer_is_made_in_the_place_of_a_bad_one(
    server: Rig, settings: dict[str, Any]
) -> None:
    content = {"pieces": BAD, "again": ["[3]"], "of": str(settings)}
    status, body = await answered(server, content, **settings)
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "[3]"
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_two_bad_answers_are_an_error_that_says_what_was_not_met(server: Rig) -> None:
    status, body = await answered(server, {"pieces": BAD})
    assert status == 500
    assert body["error"]["code"] == "schema_not_met"
    assert "twice" in body["error"]["message"]
    assert "`uniqueItems` at #" in body["error"]["message"]
    # What is free is free again.
    assert (await answered(server, {"pieces": GOOD}))[0] == 200


async def test_a_stream_of_a_bad_answer_ends_with_an_error_and_no_finish_reason(
    server: Rig,
) -> None:
    *chunks, last = await events(server, {"pieces": BAD, "again": GOOD})
    error = json.loads(last)["error"]
    assert error["code"] == "schema_not_met"
    assert "twice" not in error["message"]
    choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "[1, 1]"
    assert not any(choice["finish_reason"] for choice in choices)


async def test_a_stream_of_a_good_answer_ends_well(server: Rig) -> None:
    *chunks, done = await events(server, {"pieces": GOOD})
    assert done == b"[DONE]"
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("settings", "finish"),
    [({"max_tokens": 1}, "length"), ({"stop": [" 1"]}, "stop")],
)
async def test_what_was_cut_off_is_no_answer_to_check(
    server: Rig, settings: dict[str, Any], finish: str
) -> None:
    status, body = await answered(server, {"pieces": BAD}, **settings)
    assert (status, body["choices"][0]["finish_reason"]) == (200, finish)


async def test_a_call_is_no_answer_to_check(server: Rig) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    status, body = await answered(server, {"pieces": [call]}, tools=[tool])
    assert (status, body["choices"][0]["finish_reason"]) == (200, "tool_calls")


async def test_the_arguments_of_a_call_are_checked(server: Rig) -> None:
    parameters = {"type": "object", "properties": {"a": DISTINCT}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    calls = [
        f'<tool_call>{{"name": "f", "arguments": {{"a": {array}}}}}</tool_call>'
        for array in ("[1, 1]", "[1, 2]")
    ]
    content = {"pieces": calls[:1], "again": calls[1:]}
    settings = {"tools": [tool], "tool_choice": "required", "stream": False}
    async with http() as session:
        for directive, status in ((content, 200), ({"pieces": calls[:1]}, 500)):
            body = ask("alpha", directive, **settings)
            async with session.post(f"{server.url}/chat/completions", json=body) as response:
                assert response.status == status
                answer = await response.json()
            if status == 200:
                (call,) = answer["choices"][0]["message"]["tool_calls"]
                assert json.loads(call["function"]["arguments"]) == {"a": [1, 2]}
            else:
                assert "`uniqueItems` at #/properties/a" in answer["error"]["message"]


async def test_what_takes_too_long_to_check_is_a_warning(server: Rig) -> None:
    # The expression takes exponential time for such a text.
    slow = {"type": "array", "not": {"contains": {"pattern": "^(a|a)*$"}}}
    answer = json.dumps(["a" * 60 + "!"])
    body = ask("alpha", {"pieces": [answer]}, response_format=form(slow))
    async with http() as session:
        async with session.post(
            f"{server.url}/chat/completions", json={**body, "stream": False}
        ) as response:
            assert response.status == 200
            whole = await response.json()
        async with session.post(
            f"{server.url}/chat/completions", json={**body, "stream": True}
        ) as response:
            lines = [line[6:] async for line in response.content if line.startswith(b"data: {")]
    assert whole["choices"][0]["message"]["content"] == answer
    (warning,) = whole["warnings"]
    assert "not checked" in warning and "`not` at #" in warning
    assert json.loads(lines[-1])["warnings"] == [warning]


async def test_echo_does_not_go_with_it(server: Rig) -> None:
    body = {"model": "alpha", "prompt": "hi", "echo": True, "json_schema": DISTINCT}
    async with http() as session, session.post(f"{server.url}/completions", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "echo"


async def test_what_is_enforced_otherwise_is_a_warning(server: Rig) -> None:
    body = {"model": "alpha", "prompt": '{"pieces": ["5"]}', "json_schema": EITHER}
    async with http() as session:
        async with session.post(f"{server.url}/completions", json=body) as response:
            assert response.status == 200
            (warning,) = (await response.json())["warnings"]
        assert "`oneOf` at # is taken as `anyOf`" in warning
        async with session.post(
            f"{server.url}/completions", json={**body, "stream": True}
        ) as response:
            lines = [line[6:] async for line in response.content if line.startswith(b"data: {")]
    assert json.loads(lines[-1])["warnings"] == [warning]
    assert not any("warnings" in json.loads(line) for line in lines[:-1])
