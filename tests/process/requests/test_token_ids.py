"""Through real processes: the tokens of prompts and answers, where they are requested."""

import json
from typing import Any

import pytest

from tests.support.rigs.rig import Rig, ask, http

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
PIECES = ["<think>", "hm", "</think>", "One", " mo", "ment", "<tool_call>", '{"name": "now", ']
PIECES += ['"arguments": {}}', "</tool_call>"]


async def both(server: Rig, path: str, body: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the whole answer, and the chunks of the stream of another one."""
    body = {**body, "return_token_ids": True}
    async with http() as session:
        url = f"{server.url}/{path}"
        async with session.post(url, json={**body, "stream": False}) as response:
            whole = await response.json()
            assert response.status == 200, whole
        async with session.post(url, json={**body, "stream": True}) as response:
            lines = [line[6:] async for line in response.content if line.startswith(b"data: {")]
    return whole, [json.loads(line) for line in lines]


@pytest.mark.parametrize("settings", [{}, {"n": 2, "logprobs": True}, {"stop": ["mom"]}])
async def test_a_conversation_s_tokens(server: Rig, settings: dict[str, Any]) -> None:
    body = ask("alpha", {"pieces": PIECES}, tools=[TOOL], **settings)
    whole, chunks = await both(server, "chat/completions", body)
    ids = [choice["token_ids"] for choice in whole["choices"]]
    assert sum(map(len, ids)) == whole["usage"]["completion_tokens"]
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    joined: list[list[int]] = [[] for _ in ids]
    for chunk in chunks:
        for choice in chunk["choices"]:
            joined[choice["index"]] += choice.get("token_ids") or []
    assert joined == ids
    if not settings:
        assert len(ids[0]) == len(set(ids[0])) == len(PIECES)


async def test_a_completion_s_tokens(server: Rig) -> None:
    body = {"model": "alpha", "prompt": ["ab", "c"], "n": 2}
    whole, chunks = await both(server, "completions", body)
    prompts = [choice["prompt_token_ids"] for choice in whole["choices"]]
    assert list(map(len, prompts)) == [2, 2, 1, 1]
    said: dict[int, Any] = {}
    joined: dict[int, list[int]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            said.setdefault(choice["index"], choice.get("prompt_token_ids"))
            joined.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
    assert [said[index] for index in range(4)] == prompts
    assert [joined[index] for index in range(4)] == [
        choice["token_ids"] for choice in whole["choices"]
    ]
    assert len(joined[0]) == 9


async def test_nobody_else_gets_them(server: Rig) -> None:
    async with (
        http() as session,
        session.post(
            f"{server.url}/chat/completions", json=ask("alpha", {"tokens": 2}, stream=False)
        ) as response,
    ):
        assert b"token_ids" not in await response.read()
