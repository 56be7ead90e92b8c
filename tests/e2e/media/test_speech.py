"""A real Whisper through real processes, with the official SDK, beside a model that chats."""

import asyncio
import os
import signal
import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.models.speech_samples import word_errors
from tests.support.models.whisper_models import CLIP_TEXT, obtain_clip, obtain_whisper_tiny_en
from tests.support.rigs.rig import Rig, Stream, ask, http, serving_too, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def speaking(server: Rig) -> Iterator[Rig]:
    source = str(obtain_whisper_tiny_en())
    whisper = {"id": "whisper", "source": source, "aliases": ["whisper-1"], "preload": False}
    with serving_too(server, whisper) as lmx:
        lmx.run("load", "whisper")
        yield lmx


CLIPS = 4
"""Two minutes of sound: whoever interrupts after the first window does so long before the last."""

WINDOW_S = 30


def many_clips(clip: Path, times: int) -> bytes:
    """Return a WAV file with a clip again and again, once in each window. Whisper takes words that
    come twice in a window for a loop, and tries it again at each of its temperatures."""
    made = BytesIO()
    with wave.open(str(clip)) as one, wave.open(made, "wb") as many:
        many.setparams(one.getparams())
        silent = one.getframerate() * WINDOW_S - one.getnframes()
        quiet = bytes(silent * one.getsampwidth() * one.getnchannels())
        many.writeframes((one.readframes(one.getnframes()) + quiet) * times)
    return made.getvalue()


def test_a_real_clip_is_written_down_whole_and_streamed(speaking: Rig) -> None:
    with OpenAI(base_url=speaking.url, api_key="-", max_retries=0, timeout=300) as client:
        clip = obtain_clip()
        whole = client.audio.transcriptions.create(
            model="whisper-1", file=clip, response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )  # fmt: skip
        assert word_errors(whole.text, CLIP_TEXT) == 0
        assert (whole.language, whole.duration) == ("english", 9.96)
        assert whole.segments is not None and whole.words is not None
        assert [word.word for word in whole.words][:2] == ["Ever", "tried,"]
        assert speaking.worker("whisper")["kind"] == "transcription"
        events = list(client.audio.transcriptions.create(model="whisper", file=clip, stream=True))
        assert events[-1].type == "transcript.text.done"
        assert events[-1].text == whole.text
        with pytest.raises(openai.BadRequestError, match="English only") as refused:
            client.audio.translations.create(model="whisper", file=clip)
        assert refused.value.param == "model"
        with pytest.raises(openai.BadRequestError) as broken:
            client.audio.transcriptions.create(model="whisper", file=clip.read_bytes()[:40])
        assert broken.value.param == "file"


async def test_a_worker_that_is_killed_ends_its_transcript_alone(speaking: Rig) -> None:
    url = speaking.url
    clip = obtain_clip()
    async with http() as session, AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
        pid = speaking.wait_state("whisper", "ready", deadline_s=300)["pid"]
        stream = await client.audio.transcriptions.create(
            model="whisper", file=("long.wav", many_clips(clip, CLIPS)), stream=True
        )
        reported = [await anext(stream)]
        # Not before: it would take the processor that the first window needs.
        chat = Stream(session, url, ask("tiny", "Go on.", max_tokens=7000, ignore_eos=True))
        await chat.has_text(5, 300)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="crashed"):
            reported.extend([event async for event in stream])
        assert {event.type for event in reported} == {"transcript.text.delta"}
        await chat.has_text(len(chat.text) + 50, 300)
        assert (chat.errors, chat.done) == ([], False), "the other model's stream has gone on"
        await chat.hang_up()
        again = await client.audio.transcriptions.create(model="whisper", file=clip)
        assert word_errors(again.text, CLIP_TEXT) == 0
    assert speaking.wait_state("whisper", "ready", deadline_s=300)["pid"] != pid


async def test_a_client_that_leaves_ends_the_work(speaking: Rig) -> None:
    seen = len(speaking.log_events("worker-whisper", "task.cancelled"))
    async with AsyncOpenAI(base_url=speaking.url, api_key="-", max_retries=0) as client:
        stream = await client.audio.transcriptions.create(
            model="whisper", file=("long.wav", many_clips(obtain_clip(), CLIPS)), stream=True
        )
        await anext(stream)
        await stream.close()
    await asyncio.to_thread(
        wait_until,
        lambda: len(speaking.log_events("worker-whisper", "task.cancelled")) > seen,
        "the worker was told",
    )
