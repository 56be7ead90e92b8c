"""Sounds that a peer transcribes or makes for a client of this machine."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import aiohttp
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Preparing, Refused
from lmx.protocol.messages.speech import Speak, Spoken, SpokenSegment, Transcribe, Transcript
from lmx.protocol.messages.tasks import TaskFinished
from lmx.protocol.states import ModelKind
from tests.support.fakes.fake_peers import ready, until
from tests.support.rigs.federation_rig import CLIENT_KEY, asked, federation
from tests.support.rigs.router_rig import INSTANCE, Rig, data_lines

HEARS, SPEAKS = "org/hears", "org/speaks"
WAV: Final = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)
PARTS: Final = (b"\xff\xfb\x1e{one", b"two\x1e" * 30_000, b"three")
SOUND: Final = b"".join(PARTS)


def works(task: Any) -> Iterable[Any]:
    yield Preparing(task.stream_id)
    if isinstance(task, Speak):
        for part in PARTS:
            yield Spoken(task.stream_id, part, 1.5)
        yield Spoken(task.stream_id, b"", 0.0)
    else:
        said = SpokenSegment(0.0, 1.5, " Hello.", (5, 6), 0, 0.0, -0.25, 1.5, 0.125, ())
        yield Transcript(task.stream_id, "german", 3662.5, 3662.5, 7, (said,))
    yield TaskFinished(task.stream_id, 21)


async def with_sounds(b: Rig, *asking: Rig, script: Any = works) -> None:
    """Have a machine hear and speak, and the others know."""
    b.worker.task_script = script
    await b.publish(
        ready(HEARS, INSTANCE, created_s=1, kind=ModelKind.TRANSCRIPTION),
        ready(SPEAKS, INSTANCE, created_s=1, kind=ModelKind.SPEECH, voices=("alloy",)),
    )
    for one in asking:
        await asked(one)


async def heard(rig: Rig, path: str = "transcriptions", **fields: str) -> tuple[int, str, bytes]:
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("file", WAV, filename='../a "speech".wav', content_type="audio/wav")
    for name, value in {"model": HEARS, **fields}.items():
        form.add_field(name, value)
    async with rig.http.post(f"{rig.url}/v1/audio/{path}", data=form) as response:
        if response.status == 200:
            assert response.headers["X-Lmx-Machine"] == "b"
        return response.status, response.content_type, await response.read()


def spoken(rig: Rig, **fields: Any) -> Any:
    body = {"model": SPEAKS, "input": "Hello.", "voice": "alloy", **fields}
    return rig.http.post(f"{rig.url}/v1/audio/speech", json=body)


FORMS: Final[Mapping[str, str]] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "text/plain",
    "vtt": "text/plain",
}


async def test_a_peer_transcribes_in_every_form() -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        await with_sounds(b, a)
        for path in ("transcriptions", "translations"):
            for form, media_type in FORMS.items():
                found = await heard(a, path, response_format=form, language="de")
                own = await heard(b, path, response_format=form, language="de")
                assert found[:2] == (200, media_type), found
                assert found == own
        status, kind, events = await heard(a, stream="true")
        assert (status, kind) == (200, "text/event-stream")
        assert json.loads(data_lines(events)[-1])["type"] == "transcript.text.done"
        assert b"\x1e" not in events
        tasks = b.worker.tasks
        assert all(isinstance(task, Transcribe) for task in tasks)
        assert set(b.worker.task_blobs) == {(WAV,)}
        assert not a.worker.tasks
        # It is counted where the client came in.
        reading = a.router.metrics.read().models[HEARS]
        assert (reading.requests, reading.prompt_tokens) == (11, 11 * 21)
        assert reading.histograms["request_audio_seconds"].total == 11 * 3662.5
        _, listed = await a.admin("GET", "/admin/requests?ended=100")
        shown = {(one["machine"], one["kind"], one["state"]) for one in listed["ended"]}
        assert shown == {("b", "transcription", "completed")}
        assert not a.router.peers.federation._contents.held_bytes  # type: ignore[union-attr]


async def test_a_file_whose_name_is_no_utf_8_is_passed_on() -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        await with_sounds(b, a)
        fields = ((b'"model"', HEARS.encode()), (b'"file"; filename="M\xfcller.wav"', WAV))
        body = b"".join(
            b"--B\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n" % field
            for field in fields
        )
        headers = {"Content-Type": "multipart/form-data; boundary=B"}
        url = f"{a.url}/v1/audio/transcriptions"
        async with a.http.post(url, data=body + b"--B--\r\n", headers=headers) as response:
            assert response.status == 200, await response.text()
        assert b.worker.task_blobs == [(WAV,)]


async def test_a_peer_speaks_as_the_model_makes_it() -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        await with_sounds(b, a)
        for form, media_type in (("mp3", "audio/mpeg"), ("wav", "audio/wav")):
            async with spoken(a, response_format=form) as response:
                assert (response.status, response.content_type) == (200, media_type)
                assert response.headers["X-Lmx-Machine"] == "b"
                assert await response.read() == SOUND
        async with spoken(a, stream_format="sse") as response:
            assert response.content_type == "text/event-stream"
            done = json.loads(data_lines(await response.read())[-1])
            assert done["usage"]["output_tokens"] == 225
        reading = a.router.metrics.read().models[SPEAKS]
        assert (reading.requests, reading.histograms["request_audio_seconds"].total) == (3, 13.5)
        assert reading.completion_tokens == 3 * 225
        for task in b.worker.tasks:
            assert isinstance(task, Speak) and task.voice == "alloy"
            assert CLIENT_KEY not in repr(task)


async def test_what_a_peer_refuses_is_refused_here_in_its_words() -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        refusal = (ErrorCode.INVALID_VALUE, "no such voice", "voice")
        await with_sounds(b, a, script=lambda task: [Refused(task.stream_id, *refusal)])
        async with spoken(a) as response:
            found = await response.json()
            assert (response.status, found["error"]["param"]) == (400, "voice"), found
        status, _, text = await heard(a, model=SPEAKS)
        assert status == 400 and b"/v1/audio/speech" in text, text
        status, _, text = await heard(a, model="org/nobodys")
        assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
        status, _, text = await heard(a, model=HEARS, response_format="mp3")
        assert status == 400 and b"response_format" in text


@pytest.mark.parametrize("reason", ["peer_lost", "request_cancelled"])
async def test_a_sound_that_ends_in_the_middle_is_not_taken_for_whole(reason: str) -> None:
    def begins(task: Speak) -> Iterable[Any]:
        yield Preparing(task.stream_id)
        yield Spoken(task.stream_id, SOUND, 1.5)

    async with federation("ab") as (a, b):
        await a.publish()
        await with_sounds(b, a, script=begins)
        async with spoken(a) as response:
            assert response.status == 200
            await response.content.readexactly(len(SOUND) - 2000)
            if reason == "peer_lost":
                for one in list(b.router._runner.server.connections):  # type: ignore[union-attr]
                    one.transport.abort()
            else:
                _, listed = await a.admin("GET", "/admin/requests")
                (one,) = [each for each in listed["data"] if each["machine"] == "b"]
                assert (await a.admin("POST", f"/admin/requests/{one['id']}/cancel"))[0] == 200
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        await until(lambda: a.router.metrics.read().models[SPEAKS].errors == {reason: 1})
        _, listed = await a.admin("GET", "/admin/requests?ended=100")
        assert [one["error"] for one in listed["ended"]] == [reason]
        await until(lambda: len(b.worker.cancelled_tasks) == 1)


async def test_a_client_that_leaves_ends_the_work_there() -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        await with_sounds(b, a, script=lambda task: [Preparing(task.stream_id)])
        for call in (heard(a), sound(a)):
            before = len(b.worker.cancelled_tasks)
            count = len(b.worker.tasks)
            task = asyncio.create_task(call)
            await until(lambda count=count: len(b.worker.tasks) > count)  # type: ignore[misc]
            task.cancel()
            await until(lambda before=before: len(b.worker.cancelled_tasks) > before)  # type: ignore[misc]
        await until(lambda: not a.router.peers.links[0].running)


async def sound(rig: Rig) -> tuple[int, str, bytes]:
    async with spoken(rig) as response:
        return response.status, response.content_type, await response.read()


async def test_the_same_model_of_another_machine_transcribes_while_this_one_is_busy() -> None:
    async with federation("ab") as (a, b):
        await with_sounds(b)
        a.worker.task_script = lambda task: [Preparing(task.stream_id)]
        hears = ready(HEARS, INSTANCE, created_s=1, kind=ModelKind.TRANSCRIPTION, max_rows=1)
        await a.publish(hears)
        await asked(a)
        # It waits for ever here.
        own = asyncio.create_task(heard(a, model=f"{HEARS}@a"))
        await until(lambda: len(a.worker.tasks) == 1)
        assert (await heard(a))[0] == 200
        assert len(a.worker.tasks) == 1
        own.cancel()
