"""Text to speech over HTTP, with a worker that says what a test wants."""

import asyncio
import base64
import json
from collections.abc import Iterable
from typing import Any, Final

import aiohttp
import openai
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Preparing, Refused
from lmx.protocol.messages.speech import SoundFormat, Speak, Spoken
from lmx.protocol.messages.tasks import TaskFinished
from lmx.protocol.states import ExitCause, ModelKind
from tests.support.fakes.fake_peers import cold, ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, answer, data_lines, router_rig

PARTS: Final = (b"\xff\xfbone", b"two" * 30_000, b"three")
SOUND: Final = b"".join(PARTS)


def says(task: Speak) -> Iterable[Any]:
    yield Preparing(task.stream_id)
    for part in PARTS:
        yield Spoken(task.stream_id, part, 1.5)
    yield Spoken(task.stream_id, b"", 0.0)
    yield TaskFinished(task.stream_id, 21)


async def serve(
    rig: Rig,
    script: Any = says,
    kind: ModelKind = ModelKind.SPEECH,
    instance: str = INSTANCE,
) -> None:
    worker = rig.worker if instance == INSTANCE else rig.add_worker(instance, answer)
    worker.task_script = script
    voices = ("af_heart", "bm_george") if kind is ModelKind.SPEECH else ()
    await rig.publish(
        ready(MODEL, instance, kind=kind, voices=voices, family="kokoro"), default=MODEL
    )


async def get(rig: Rig, path: str) -> tuple[int, Any]:
    return await rig.json("GET", path)


async def test_the_openai_sdk_gets_the_sound(rig: Rig) -> None:
    await serve(rig)
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="-") as client:
        whole = await client.audio.speech.create(model=MODEL, voice="alloy", input="Hello.")
        assert whole.content == SOUND
        assert whole.response.headers["Content-Type"] == "audio/mpeg"
        async with client.audio.speech.with_streaming_response.create(
            model=MODEL, voice={"id": "af_heart"}, input="Hello. You.", response_format="opus",
            speed=1.5, instructions="Softly.", extra_body={"keep_alive": "5m"},
        ) as response:  # fmt: skip
            assert b"".join([part async for part in response.iter_bytes()]) == SOUND
            assert response.headers["Content-Type"] == "audio/ogg"
            assert response.headers["X-Lmx-Ignored"] == "instructions"
    first, second = rig.worker.tasks
    assert isinstance(first, Speak) and isinstance(second, Speak)
    assert (first.text, first.voice, first.format, first.speed) == (
        "Hello.", "alloy", SoundFormat.MP3, 1.0,
    )  # fmt: skip
    assert (second.voice, second.format, second.speed) == ("af_heart", SoundFormat.OPUS, 1.5)
    assert second.keep_alive_s == 300.0


async def test_the_sound_may_come_as_events(rig: Rig) -> None:
    await serve(rig)
    body = {"model": MODEL, "input": "Hello.", "voice": "af_heart", "stream_format": "sse"}
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        assert response.content_type == "text/event-stream"
        *deltas, done = map(json.loads, data_lines(await response.read()))
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == SOUND
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 21, "output_tokens": 225, "total_tokens": 246},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": " \n"}, "input"),
        ({"voice": ""}, "voice"),
        ({"voice": 3}, "voice"),
        ({"voice": {"name": "a"}}, "voice.id"),
        ({"response_format": "mp4"}, "response_format"),
        ({"speed": 5}, "speed"),
        ({"stream_format": "chunks"}, "stream_format"),
    ],
)
async def test_an_error_names_the_field(rig: Rig, fields: dict[str, Any], param: str) -> None:
    await serve(rig)
    body = {"model": MODEL, "input": "Hello."} | fields
    status, answer = await rig.post_json("/v1/audio/speech", **body)
    assert (status, answer["error"]["param"]) == (400, param), answer


async def test_the_refusal_of_a_worker_is_told_before_the_sound(rig: Rig) -> None:
    refusal = (ErrorCode.INVALID_VALUE, "no such voice", "voice")
    await serve(rig, lambda task: [Refused(task.stream_id, *refusal)])
    for form in ("audio", "sse"):
        status, answer = await rig.post_json(
            "/v1/audio/speech", model=MODEL, input="Hello.", stream_format=form
        )
        assert (status, answer["error"]["param"]) == (400, "voice"), answer


async def test_without_a_name_the_model_that_speaks_is_taken(rig: Rig) -> None:
    rig.worker.task_script = says
    await rig.publish(
        cold("chat", kind=ModelKind.CHAT),
        ready(MODEL, INSTANCE, kind=ModelKind.SPEECH),
        default="chat",
    )
    body = {"input": "Hello."}
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        assert (response.status, await response.read()) == (200, SOUND)


async def test_voices_are_listed_by_model(rig: Rig) -> None:
    await serve(rig)
    status, answer = await get(rig, "/v1/audio/voices")
    assert status == 200
    assert [(one["id"], one["model"], one["language"]) for one in answer["data"]] == [
        ("af_heart", MODEL, "en-us"),
        ("bm_george", MODEL, "en-gb"),
    ]
    status, answer = await get(rig, f"/v1/models/{MODEL}")
    assert answer["architecture"] == {"input_modalities": ["text"], "output_modalities": ["audio"]}
    assert (answer["kind"], answer["capabilities"]) == ("speech", ["speech"])


async def test_a_sound_whose_worker_is_lost_never_looks_whole(rig: Rig) -> None:
    await serve(rig, lambda task: list(says(task))[:2])
    body = {"model": MODEL, "input": "Hello."}
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        assert await response.content.readexactly(len(PARTS[0])) == PARTS[0]
        await rig.supervisor.exited(INSTANCE, MODEL, ExitCause.KILLED, "")
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await serve(rig, lambda task: list(says(task))[:2], instance="0000000b")
    body["stream_format"] = "sse"
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        await response.content.readuntil(b"\n\n")
        await rig.supervisor.exited("0000000b", MODEL, ExitCause.KILLED, "")
        (failed,) = data_lines(await response.read())
    assert json.loads(failed)["error"]["code"] == ErrorCode.WORKER_KILLED


async def test_a_text_without_a_sound_is_an_empty_file(rig: Rig) -> None:
    await serve(rig, lambda task: [TaskFinished(task.stream_id, 2)])
    body = {"model": MODEL, "input": "Hello.", "response_format": "pcm"}
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        assert (response.status, await response.read()) == (200, b"")
    body["stream_format"] = "sse"
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        (done,) = data_lines(await response.read())
    assert json.loads(done)["usage"]["output_tokens"] == 0


async def test_a_client_that_leaves_ends_the_work(rig: Rig) -> None:
    await serve(rig, lambda task: list(says(task))[:2])
    body = {"model": MODEL, "input": "Hello."}
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        await response.content.readexactly(len(PARTS[0]))
        response.close()
    await until(lambda: rig.worker.cancelled_tasks)


async def test_a_sound_does_not_wait_for_ever_for_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.inference.speech._MOST_WAITING_BYTES", 2**20)

    def much(task: Speak) -> Iterable[Any]:
        for _ in range(64):
            yield Spoken(task.stream_id, bytes(2**18), 5.0)

    async with router_rig() as rig:
        await serve(rig, much)
        body = {"model": MODEL, "input": "Hello.", "response_format": "wav"}
        async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
            await until(lambda: rig.worker.cancelled_tasks)
            with pytest.raises(aiohttp.ClientError):
                await response.read()


async def test_a_sound_is_measured_by_its_length(rig: Rig) -> None:
    await serve(rig)
    body = {"model": MODEL, "input": "Hello."}
    async with rig.http.post(f"{rig.url}/v1/audio/speech", json=body) as response:
        await response.read()
    await until(lambda: rig.router.metrics.read().models[MODEL].requests)
    histograms = rig.router.metrics.read().models[MODEL].histograms
    assert histograms["request_audio_seconds"].total == 4.5
    assert histograms["request_generation_tokens"].total == 225


async def test_its_body_is_captured() -> None:
    async with router_rig(capture_requests=2) as rig:
        await serve(rig)
        async with rig.http.post(
            f"{rig.url}/v1/audio/speech", json={"input": "Hello."}
        ) as response:
            assert await response.read() == SOUND
        _, listed = await rig.admin("GET", "/admin/requests?ended=1")
        (ended,) = listed["ended"]
        assert ended["captured"] is True
        _, found = await rig.admin("GET", f"/admin/requests/{ended['id']}/capture")
        assert (found["path"], found["body"]) == ("/v1/audio/speech", {"input": "Hello."})


async def test_operators_see_and_cancel_it(rig: Rig) -> None:
    await serve(rig, lambda task: list(says(task))[:1])
    body = {"model": MODEL, "input": "Hello."}
    asked = asyncio.create_task(rig.post_json("/v1/audio/speech", **body))
    await until(lambda: rig.worker.tasks)
    _, listed = await rig.admin("GET", "/admin/requests")
    (live,) = listed["data"]
    assert (live["kind"], live["family"], live["model"]) == ("speech", "audio", MODEL)
    await rig.admin("POST", f"/admin/requests/{live['id']}/cancel")
    status, answer = await asked
    assert answer["error"]["code"] == ErrorCode.REQUEST_CANCELLED, (status, answer)
