"""Chat completions over real sockets: streams, whole answers, and what goes wrong in them."""

import asyncio
import json

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Generate
from lmx.protocol.states import ExitCause, FinishReason
from lmx.router.workers.stream import CREDIT_DELTAS
from tests.support.fakes.fake_peers import FakeStream, ends, fails, plays, refuses, until
from tests.support.rigs.router_rig import (
    MODEL,
    TEXTS,
    Rig,
    chat_body,
    data_lines,
    joined_text,
    router_rig,
)

TEXT = "".join(TEXTS)


async def test_whole_answer(rig: Rig) -> None:
    status, body = await rig.chat_json()
    assert status == 200
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("chatcmpl-")
    assert body["system_fingerprint"].startswith("fp_")
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "cached_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    timings = body["timings"]
    assert timings["tokens_per_s"] == 8.0  # 4 tokens after the first, in 0.5 s
    assert timings["total_s"] >= timings["first_token_s"] > 0
    assert (timings["queue_s"], timings["prefill_s"], timings["decode_s"]) == (0.01, 0.02, 0.5)
    assert timings["total_s"] > timings["load_s"] >= 0


async def test_stream_equals_whole_answer_and_has_the_contracts_form(rig: Rig) -> None:
    lines = await rig.chat_events()
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert joined_text(lines) == TEXT
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    last = chunks[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    shared = {
        (chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"])
        for chunk in chunks
    }
    assert len(shared) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)
    assert "timings" in chunks[-1]
    assert all("timings" not in chunk for chunk in chunks[:-1])


async def test_usage_chunk_is_last_and_others_say_null(rig: Rig) -> None:
    lines = await rig.chat_events(stream_options={"include_usage": True})
    plain = await rig.chat_events(stream_options={"include_usage": False})
    chunks = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == "[DONE]"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 12
    assert "timings" in chunks[-1]
    assert "timings" not in chunks[-2]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert not any("usage" in line for line in plain)


async def test_stream_headers_and_v3_path(rig: Rig) -> None:
    async with rig.http.post(
        f"{rig.url}/v3/chat/completions", json=chat_body(stream=True)
    ) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["X-Request-Id"].startswith("req_")
        assert joined_text(data_lines(await response.read())) == TEXT


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def test_what_the_worker_is_sent(rig: Rig) -> None:
    await rig.chat_json(
        model=None,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        ],
        temperature=0,
        top_p=0.5,
        seed=-3,
        max_completion_tokens=9,
        stop=["x", "y"],
        chat_template_kwargs={"enable_thinking": False},
    )
    await rig.chat_json(stop="z", max_tokens=4)
    first, second = (stream.request for stream in rig.worker.streams)
    assert isinstance(first, Generate)
    assert list(first.messages or ()) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
    ]
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.0, 0.5, -3)
    assert (first.max_tokens, first.stop) == (9, ("x", "y"))
    assert first.template_kwargs == {"enable_thinking": False}
    assert first.credit_deltas == CREDIT_DELTAS
    assert (second.max_tokens, second.stop, second.sampling.temperature) == (4, ("z",), None)
    assert first.stream_id != second.stream_id


@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_is_a_real_status_also_for_streams(stream: bool) -> None:
    refuse = refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9000 tokens, 4096 fit", param="messages")

    async with router_rig(refuse) as rig:
        status, body = await rig.chat_json(stream=stream)
    assert status == 400
    assert body["error"] == {
        "message": "9000 tokens, 4096 fit",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


async def test_failure_before_the_first_token() -> None:
    async with router_rig(plays(fails(ErrorCode.ENGINE_ERROR, "no kernel"))) as rig:
        status, body = await rig.chat_json()
        lines = await rig.chat_events()
    assert (status, body["error"]["code"]) == (500, "engine_error")
    assert len(lines) == 2
    assert json.loads(lines[1])["error"]["code"] == "engine_error"


async def test_failure_after_the_first_token_is_one_event_and_the_end() -> None:
    async with router_rig(plays("so far", fails(ErrorCode.ENGINE_ERROR, "no kernel"))) as rig:
        async with rig.chat(stream=True) as response:
            assert response.status == 200
            lines = data_lines(await response.read())
            assert response.headers["Connection"] == "close"
        status, body = await rig.chat_json()
    assert joined_text(lines[:-1]) == "so far"
    assert json.loads(lines[-1]) == {
        "error": {
            "message": "no kernel",
            "type": "server_error",
            "param": None,
            "code": "engine_error",
        }
    }
    assert (status, body["error"]["code"]) == (500, "engine_error")


EXITS = [
    (ExitCause.CRASH, "worker_crashed", 500),
    (ExitCause.SIGNAL, "worker_crashed", 500),
    (ExitCause.HANG, "worker_hung", 500),
    (ExitCause.KILLED, "worker_killed", 503),
    (ExitCause.UNLOADED, "model_unloaded", 503),
    (ExitCause.SHUTDOWN, "shutting_down", 503),
]


@pytest.mark.parametrize(("cause", "code", "status"), EXITS)
async def test_worker_exit_ends_its_streams_with_the_reason(
    cause: ExitCause, code: str, status: int
) -> None:
    async with router_rig(plays("so far")) as rig:
        streaming = asyncio.create_task(rig.chat_events())
        whole = asyncio.create_task(rig.chat_json())
        await rig.worker.stream(1)
        await until(lambda: [live.tokens for live in rig.router.live.all] == [1, 1])
        assert rig.router.workers.open_streams == 2
        await rig.supervisor.exited(rig.worker.instance, MODEL, cause, "signal 9")
        lines = await streaming
        whole_status, body = await whole
        assert rig.router.workers.open_streams == 0
    error = json.loads(lines[-1])["error"]
    assert (error["code"], body["error"]["code"], whole_status) == (code, code, status)
    assert "signal 9" in error["message"]
    assert joined_text(lines[:-1]) == "so far"


@pytest.mark.parametrize("reason", list(FinishReason))
async def test_every_finish_reason_is_passed_on(reason: FinishReason) -> None:
    async with router_rig(plays(ends("x", reason=reason))) as rig:
        _, body = await rig.chat_json()
    assert body["choices"][0]["finish_reason"] == reason.value


async def test_an_empty_answer() -> None:
    async with router_rig(plays(ends(tokens=0))) as rig:
        _, body = await rig.chat_json()
        lines = await rig.chat_events()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["timings"]["tokens_per_s"] == 0.0
    assert len(lines) == 3  # role, finish, [DONE]


async def test_many_streams_at_once_keep_their_text_apart() -> None:
    async def echo(fake: FakeStream) -> None:
        await fake.accept()
        assert fake.request.messages is not None
        text = fake.request.messages[0]["content"]
        for index in range(200):
            await fake.say_within_credit(f"{text}:{index} ")
        await fake.finish()

    async with router_rig(echo) as rig:
        answers = await asyncio.gather(
            *(rig.chat_events(messages=[{"role": "user", "content": f"s{n}"}]) for n in range(24))
        )
        assert rig.router.workers.open_streams == 0
    for number, lines in enumerate(answers):
        assert joined_text(lines) == "".join(f"s{number}:{index} " for index in range(200))


async def test_pings_while_nothing_comes() -> None:
    release = asyncio.Event()

    slow = plays(release, ends("late"))

    async with router_rig(slow, ping_interval_s=0.05) as rig, rig.chat(stream=True) as response:
        seen = b""
        while seen.count(b": ping\n\n") < 3:
            seen += await asyncio.wait_for(response.content.readany(), 90)
        release.set()
        seen += await response.read()
    assert joined_text(data_lines(seen)) == "late"
