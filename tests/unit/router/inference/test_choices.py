"""Chat over real sockets: several answers at once, tools, reasoning, logprobs, other kinds of
model."""

import json
from typing import Any

import pytest
from yarl import URL

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Delta, TokenLogprob, ToolCallPart, TopLogprob, Usage
from lmx.protocol.states import DeltaKind, FinishReason, ModelKind, ToolChoice
from tests.support.fakes.fake_peers import FakeStream, ready
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def chunks_of(lines: list[str]) -> list[dict[str, Any]]:
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def three(fake: FakeStream) -> None:
    """Three answers in turns; the second is whole first."""
    await fake.accept()
    await fake.send_deltas(*(Delta(0, f"a{index} ", 1, index) for index in range(3)))
    await fake.end_choice(1, FinishReason.LENGTH)
    await fake.send_deltas(Delta(0, "b2", 1, 2), Delta(0, "b0", 1, 0))
    await fake.end_choice(2, FinishReason.STOP, stop="END")
    await fake.finish(tokens=5)


async def test_three_answers_interleave_and_end_by_themselves() -> None:
    async with router_rig(three) as rig:
        lines = await rig.chat_events(n=3, stop="END", stream_options={"include_usage": True})
        status, body = await rig.chat_json(n=3, stop="END")
    assert status == 200
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["a0 b0", "a1 ", "a2 b2"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length", "stop"]
    assert [choice["stop_reason"] for choice in body["choices"]] == [None, None, "END"]
    chunks = chunks_of(lines)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    seen = [
        (choice["index"], choice["delta"].get("content"), choice["finish_reason"])
        for chunk in chunks[:-1]
        for choice in chunk["choices"]
    ]
    assert seen[:3] == [(0, "", None), (1, "", None), (2, "", None)]
    joined = ["".join(text or "" for i, text, _ in seen if i == index) for index in range(3)]
    assert joined == texts
    assert [entry for entry in seen if entry[2]] == [
        (1, None, "length"), (2, None, "stop"), (0, None, "stop"),
    ]  # fmt: skip
    assert [i for i, text, _ in seen[3:] if text] == [0, 1, 2, 2, 0]


async def test_timings_are_in_the_very_last_chunk_also_of_several_answers() -> None:
    async with router_rig(three) as rig:
        chunks = chunks_of(await rig.chat_events(n=3))
    assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def call_tools(fake: FakeStream) -> None:
    await fake.accept()
    call = DeltaKind.TOOL_CALL
    await fake.send_deltas(
        Delta(0, "let me", 2, kind=DeltaKind.REASONING),
        Delta(0, " see", 1, kind=DeltaKind.REASONING),
        Delta(0, "", 1, kind=call, call=ToolCallPart(0, "call_a", "get_weather")),
        Delta(0, '{"city":', 3, kind=call, call=ToolCallPart(0)),
        Delta(0, '"大阪"}', 3, kind=call, call=ToolCallPart(0)),
        Delta(0, "{}", 3, kind=call, call=ToolCallPart(1, "call_b", "get_weather")),
    )
    await fake.finish(reason=FinishReason.TOOL_CALLS, usage=Usage(7, 13, 0, reasoning_tokens=3))


async def test_tool_calls_and_reasoning() -> None:
    async with router_rig(call_tools) as rig:
        chunks = chunks_of(await rig.chat_events(tools=[WEATHER], tool_choice="required"))
        _, body = await rig.chat_json(tools=[WEATHER])
        asked = (await rig.worker.stream()).request.tool_use
    assert asked is not None
    assert (asked.choice, asked.tools) == (ToolChoice.REQUIRED, (WEATHER,))
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "let me see",
        "tool_calls": [
            {
                "id": "call_a",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"大阪"}'},
            },
            {
                "id": "call_b",
                "type": "function",
                "function": {"name": "get_weather", "arguments": "{}"},
            },
        ],
    }
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == [
        "let me",
        " see",
    ]
    fragments = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [fragment["index"] for fragment in fragments] == [0, 0, 0, 1]
    assert [fragment.get("id") for fragment in fragments] == ["call_a", None, None, "call_b"]
    assert not any(delta.get("content") for delta in deltas)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def split_emoji(fake: FakeStream) -> None:
    await fake.accept()
    top = (TopLogprob(b" hi", -0.1, 5), TopLogprob(b"\xe6", -2.0, 6))
    await fake.send_deltas(Delta(0, " hi", 1, logprobs=(TokenLogprob(b" hi", -0.1, 5, top),)))
    halves = (TokenLogprob(b"\xf0\x9f", -1.0, 7), TokenLogprob(b"\x8c\x8d", -2.0, 8))
    await fake.send_deltas(Delta(0, "🌍", 2, logprobs=halves))
    await fake.finish()


async def test_logprobs_come_with_their_text_and_with_bytes() -> None:
    async with router_rig(split_emoji) as rig:
        chunks = chunks_of(await rig.chat_events(logprobs=True, top_logprobs=2))
        _, body = await rig.chat_json(logprobs=True, top_logprobs=2)
        assert (await rig.worker.stream()).request.top_logprobs == 2
    entries = body["choices"][0]["logprobs"]["content"]
    assert body["choices"][0]["logprobs"]["refusal"] is None
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == " hi🌍"
    assert entries[0] == {
        "token": " hi",
        "logprob": -0.1,
        "bytes": [32, 104, 105],
        "top_logprobs": [
            {"token": " hi", "logprob": -0.1, "bytes": [32, 104, 105]},
            {"token": "\ufffd", "logprob": -2.0, "bytes": [0xE6]},
        ],
    }
    streamed = [chunk["choices"][0] for chunk in chunks]
    assert [len(c["logprobs"]["content"]) for c in streamed if c["logprobs"]] == [1, 2]
    assert [e for c in streamed if c["logprobs"] for e in c["logprobs"]["content"]] == entries


@pytest.mark.parametrize(
    ("kind", "route"),
    [
        (ModelKind.EMBEDDING, "/v1/embeddings"),
        (ModelKind.RERANK, "/v1/rerank"),
        (ModelKind.TRANSCRIPTION, "/v1/audio/transcriptions"),
        (ModelKind.SPEECH, "/v1/audio/speech"),
    ],
)
async def test_a_model_of_another_kind_is_refused_with_its_own_route(
    rig: Rig, kind: ModelKind, route: str
) -> None:
    model = ready(MODEL, INSTANCE, kind=kind, capabilities=(kind.value,))
    await rig.publish(model, default=MODEL)
    status, body = await rig.chat_json(stream=True)
    text_status, text_body = await rig.post_json("/v1/completions", prompt="x")
    _, shown = await rig.json("GET", f"/v1/models/{MODEL}")
    assert not rig.worker.streams
    assert (status, text_status) == (400, 400)
    assert body == text_body
    assert (body["error"]["param"], body["error"]["code"]) == ("model", "unsupported_value")
    assert route in body["error"]["message"]
    assert (shown["kind"], shown["capabilities"]) == (kind.value, [kind.value])


async def test_what_a_worker_finds_wrong_with_a_schema_is_a_400_with_its_param() -> None:
    async def refuse(fake: FakeStream) -> None:
        structure = fake.request.structure
        assert structure is not None
        await fake.refuse(ErrorCode.INVALID_VALUE, "no such type", param=structure.param)

    async with router_rig(refuse) as rig:
        status, body = await rig.chat_json(guided_json={"type": "strnig"})
    assert (status, body["error"]["param"]) == (400, "guided_json")


async def test_on_v3_stop_strings_stay_in_a_stream(rig: Rig) -> None:
    for path, stream, included in [
        ("/v3/chat/completions", True, True),
        ("/v3/chat/completions", False, False),
        ("/v1/chat/completions", True, False),
        ("/v3/completions", True, True),
        ("//v3/completions/", True, True),
    ]:
        body = {"model": MODEL, "stop": "x", "prompt": "hi", "stream": stream}
        body["messages"] = [{"role": "user", "content": "hi"}]
        url = URL(f"{rig.url}{path}", encoded=True)
        async with rig.http.post(url, json=body) as response:
            assert response.status == 200
            await response.read()
        assert rig.worker.streams[-1].request.include_stop is included, path
    status, body = await rig.post_json(
        "/v3/chat/completions", messages=body["messages"], stream=True,
        include_stop_str_in_output=False,
    )  # fmt: skip
    assert (status, body["error"]["param"]) == (400, "include_stop_str_in_output")
