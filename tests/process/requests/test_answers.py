"""Through real processes: a stream, put together, is the answer that came whole."""

import json
from typing import Any

import aiohttp
import pytest

from tests.support.rigs.rig import Rig, ask, http

TOOL = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object"}},
}
CALL = ["<tool", '_call>{"name": "now", ', '"arguments": {"zone": "日', '本 🎉"}}', "</tool_call>"]
ANSWERS: dict[str, list[str]] = {
    "text": ["Hello", " there", ", you", "."],
    "scripts": ["日本", "語 ", "👩‍👩‍👧", " Ünï", "çödé 🇫🇷", "\n\n", "end "],
    "reasoning": ["<think>", "\nLet me", " see 日本 🎉", "\n</thi", "nk>", "\n\nSo:", " yes"],
    "a false start": ["a <thi", "s is < no mark", " <tool", "box>"],
    "a call": CALL,
    "all of it": ["<think>", "hm", "</think>", "\n\nOne moment.", "\n", *CALL, "\n", *CALL],
}


async def whole(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[int, Any]:
    async with session.post(f"{url}/chat/completions", json={**body, "stream": False}) as response:
        assert response.status == 200
        answer = await response.json()
    return {
        choice["index"]: {
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"].get("reasoning_content", ""),
            "calls": [
                (call["function"]["name"], call["function"]["arguments"])
                for call in choice["message"].get("tool_calls", ())
            ],
            "finish": choice["finish_reason"],
            "logprobs": (choice["logprobs"] or {"content": []})["content"],
        }
        for choice in answer["choices"]
    }


async def streamed(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> dict[int, Any]:
    joined: dict[int, Any] = {}
    calls: dict[tuple[int, int], list[str]] = {}
    async with session.post(f"{url}/chat/completions", json={**body, "stream": True}) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                into = joined.setdefault(
                    choice["index"],
                    {"content": "", "reasoning": "", "finish": None, "logprobs": []},
                )
                delta = choice["delta"]
                into["content"] += delta.get("content") or ""
                into["reasoning"] += delta.get("reasoning_content") or ""
                into["finish"] = choice["finish_reason"] or into["finish"]
                if choice["logprobs"]:
                    into["logprobs"] += choice["logprobs"]["content"]
                for part in delta.get("tool_calls", ()):
                    call = calls.setdefault((choice["index"], part["index"]), ["", ""])
                    call[0] += part["function"].get("name") or ""
                    call[1] += part["function"]["arguments"]
    for index, into in joined.items():
        into["calls"] = [tuple(call) for (of, _), call in sorted(calls.items()) if of == index]
    return joined


@pytest.mark.parametrize("settings", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 2}])
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_stream_joined_is_the_whole_answer(
    server: Rig, name: str, settings: dict[str, Any]
) -> None:
    body = ask("alpha", {"pieces": ANSWERS[name]}, tools=[TOOL], **settings)
    async with http() as session:
        one = await whole(session, server.url, body)
        other = await streamed(session, server.url, body)
    assert other == one
    answer = one[0]
    if "logprobs" in settings:
        said = b"".join(bytes(entry["bytes"]) for entry in answer["logprobs"]).decode()
        assert said.split() == answer["content"].split()
    everything = answer["content"] + answer["reasoning"]
    assert not any(mark in everything for mark in ("<think>", "</think>", "<tool_call>"))
    raw = "".join(ANSWERS[name])
    assert bool(answer["reasoning"]) == ("<think>" in raw)
    assert len(answer["calls"]) == raw.count("</tool_call>")
    assert answer["finish"] == ("tool_calls" if answer["calls"] else "stop")
    if name in ("text", "scripts", "a false start"):
        assert answer["content"] == raw


async def test_beams_and_best_of_end_with_the_right_number_of_answers(server: Rig) -> None:
    async with http() as session:
        for settings in ({"best_of": 4}, {"best_of": 4, "temperature": 1.0}, {"best_of": 2}):
            body = ask("alpha", {"tokens": 3}, n=2, **settings)
            one = await whole(session, server.url, body)
            assert await streamed(session, server.url, body) == one
            assert sorted(one) == [0, 1]
