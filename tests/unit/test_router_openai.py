"""The official client library against the router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from fake_peers import FakeStream
from router_rig import MODEL, TEXTS, Rig, answer, router_rig

from lmx.protocol.errors import ErrorCode

TEXT = "".join(TEXTS)


@asynccontextmanager
async def sdk(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0, timeout=10
    ) as client:
        yield client


async def test_whole_and_streamed_answers() -> None:
    async with router_rig() as rig, sdk(rig) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}]
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 12
    assert whole._request_id is not None
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == TEXT
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


async def test_errors_are_the_library_s_own() -> None:
    async with router_rig() as rig, sdk(rig) as client:
        with pytest.raises(openai.NotFoundError) as not_found:
            await client.chat.completions.create(
                model="gpt-9", messages=[{"role": "user", "content": "hi"}]
            )
        assert not_found.value.code == "model_not_found"
        assert not_found.value.param == "model"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=3
            )
        assert bad.value.param == "temperature"


async def test_an_error_in_a_stream_is_raised_after_the_text() -> None:
    async def fail(fake: FakeStream) -> None:
        await fake.accept()
        await fake.say("so far")
        await fake.fail(ErrorCode.ENGINE_ERROR, "no kernel")

    async with router_rig(fail) as rig, sdk(rig) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        seen = []
        with pytest.raises(openai.APIError, match="no kernel") as caught:
            async for chunk in stream:
                seen.append(chunk.choices[0].delta.content)  # noqa: PERF401 - kept when it raises
        assert seen == ["", "so far"]
        assert caught.value.code == "engine_error"


async def test_leaving_a_stream_and_going_on() -> None:
    async def endless(fake: FakeStream) -> None:
        await fake.accept()
        while not fake.cancelled:
            await fake.say_within_credit("x")

    async with router_rig(endless) as rig, sdk(rig) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content == "x":
                break
        await stream.close()
        rig.worker.script = answer
        models = await client.models.list()
        assert [model.id for model in models.data] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}]
        )
        assert whole.choices[0].message.content == TEXT
