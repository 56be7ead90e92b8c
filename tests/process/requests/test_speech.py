"""A voice that dies, hangs or is unloaded, while a model chats."""

import asyncio
import json
import os
import signal
import wave
from collections.abc import Iterator
from io import BytesIO

import aiohttp
import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted

pytestmark = pytest.mark.long

ENGINE = "tests.support.fakes.scripted_voice:create"
TEXT = "This is a sentence of the text. " * 6
LONG = TEXT * 20


@pytest.fixture(scope="module")
def speaking() -> Iterator[Rig]:
    slow = {"engine": ENGINE, "kind": "speech", "options": {"sentence_s": 0.3}}
    models = [scripted("alpha"), scripted("voice", **slow)]
    with rig({"models": models}) as lmx:
        for name in ("alpha", "voice"):
            lmx.wait_state(name, "ready")
        yield lmx


def body(text: str, **fields: str) -> dict[str, str]:
    return {"model": "voice", "input": text, "response_format": "wav", **fields}


async def test_the_official_sdk_gets_a_file_that_plays(speaking: Rig) -> None:
    # It takes a second to import, in every process that collects this file.
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=speaking.url, api_key="-", max_retries=0) as client:
        async with client.audio.speech.with_streaming_response.create(
            model="voice", voice="alloy", input=TEXT, response_format="wav"
        ) as response:
            sound = b"".join([part async for part in response.iter_bytes()])
        with wave.open(BytesIO(sound)) as file:
            assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert len(sound) == 44 + 6 * 2 * 24_000
        mp3 = await client.audio.speech.create(model="voice", voice="alloy", input=TEXT)
        assert mp3.content[:3] == b"ID3" and len(mp3.content) > 6 * 6000


async def test_a_voice_that_is_killed_or_hangs_ends_its_sounds_alone(speaking: Rig) -> None:
    async with http() as session:
        chat = Stream(session, speaking.url, ask("alpha", {"tokens": 3900, "step_s": 0.1}))
        await chat.has_text(5, 90)
        for end, code in (("kill", "worker_crashed"), ("hang", "worker_hung")):
            pid = (await asyncio.to_thread(speaking.wait_state, "voice", "ready"))["pid"]
            text = LONG if end == "kill" else f"{TEXT} HANG, it says, and does not go on."
            url = f"{speaking.url}/audio/speech"
            sse = await session.post(url, json=body(text, stream_format="sse"))
            # The first sentence comes though another one never ends.
            await sse.content.readuntil(b"\n\n")
            if end == "kill":
                plain = await session.post(url, json=body(text))
                await plain.content.readexactly(44)
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(aiohttp.ClientError):
                    await plain.read()
            events = (await sse.read()).split(b"\n\n")
            last = json.loads(events[-2].removeprefix(b"data: "))
            assert last["error"]["code"] == code, last
        seen = len(chat.text)
        await chat.has_text(seen + 20, 90)
        assert (chat.errors, chat.done) == ([], False), "the other model's stream has gone on"
        await chat.hang_up()
    await asyncio.to_thread(speaking.wait_state, "voice", "ready")


async def test_a_voice_that_is_unloaded_finishes_nothing_by_halves(speaking: Rig) -> None:
    async with http() as session:
        url = f"{speaking.url}/audio/speech"
        async with session.post(url, json=body(LONG, stream_format="sse")) as response:
            await response.content.readuntil(b"\n\n")
            await asyncio.to_thread(speaking.run, "kill", "voice")
            events = (await response.read()).split(b"\n\n")
        last = json.loads(events[-2].removeprefix(b"data: "))
        assert last["error"]["code"] in ("worker_killed", "model_unloaded"), last
        async with session.post(url, json=body("It speaks again.")) as response:
            assert response.status == 200
            assert len(await response.read()) == 44 + 48_000
