"""Speech to text over HTTP, with a worker that says what a test wants."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import aiohttp
import openai
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Preparing, Refused
from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.messages.speech import SpokenSegment, SpokenWord, Transcribe, Transcript
from lmx.protocol.messages.tasks import TaskFinished
from lmx.protocol.states import ExitCause, MediaForm, MediaKind, ModelKind
from tests.support.fakes.fake_peers import ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, data_lines, router_rig

WAV: Final = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)


def segment(start_s: float, end_s: float, text: str, *words: SpokenWord) -> SpokenSegment:
    return SpokenSegment(start_s, end_s, text, (5, 6), 0, 0.0, -0.25, 1.5, 0.125, words)


FIRST = (
    segment(0.0, 1.5, " Hello <there>,", SpokenWord(" Hello", 0.0, 0.5)),
    segment(1.5, 3661.25, " & good --> bye."),
)
SECOND = (segment(3661.5, 3662.0, " The end.", SpokenWord(" The", 3661.5, 3661.75)),)
TEXT = "Hello <there>, & good --> bye. The end."


def says(task: Transcribe) -> Iterable[Any]:
    yield Preparing(task.stream_id)
    yield Transcript(task.stream_id, "german", 3662.5, 30.0, 7, FIRST)
    yield Transcript(task.stream_id, "german", 3662.5, 60.0, 0)
    yield Transcript(task.stream_id, "german", 3662.5, 3662.5, 4, SECOND)
    yield TaskFinished(task.stream_id, 183128)


async def serve(rig: Rig, script: Any = says, kind: ModelKind = ModelKind.TRANSCRIPTION) -> None:
    rig.worker.task_script = script
    await rig.publish(ready(MODEL, INSTANCE, kind=kind), default=MODEL)


def transcribes(rig: Rig) -> list[Transcribe]:
    return [task for task in rig.worker.tasks if isinstance(task, Transcribe)]


async def post(
    rig: Rig, *fields: tuple[str, Any], file: bytes | None = WAV, path: str = "transcriptions"
) -> tuple[int, Any, aiohttp.ClientResponse]:
    form = aiohttp.FormData(default_to_multipart=True)
    if file is not None:
        form.add_field("file", file, filename="speech.wav", content_type="audio/wav")
    for name, value in fields:
        form.add_field(name, value)
    async with rig.http.post(f"{rig.url}/v1/audio/{path}", data=form) as response:
        body = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(body) if is_json else body.decode(), response


async def test_a_file_goes_to_the_worker_as_it_is(rig: Rig) -> None:
    await serve(rig)
    status, answer, _ = await post(
        rig, ("model", MODEL), ("language", "de"), ("prompt", "Names."), ("keep_alive", "5m")
    )
    assert status == 200, answer
    assert answer == {"text": TEXT, "usage": {"type": "duration", "seconds": 3663}}
    (task,) = rig.worker.tasks
    assert isinstance(task, Transcribe)
    (item,) = task.media
    assert (item.kind, item.form, item.param) == (MediaKind.AUDIO, MediaForm.WAV, "file")
    assert rig.worker.task_blobs == [(WAV,)]
    assert (task.language, task.prompt, task.keep_alive_s) == ("de", "Names.", 300.0)
    assert (task.translate, task.words, task.temperature) == (False, False, None)


async def test_the_openai_sdk_gets_every_form(rig: Rig) -> None:
    await serve(rig)
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="-") as client:
        for audio in (client.audio.transcriptions, client.audio.translations):
            create: Any = audio.create
            plain = await create(model=MODEL, file=("a.wav", WAV))
            assert plain.text == TEXT
            text = await create(model=MODEL, file=WAV, response_format="text")
            assert text == f"{TEXT}\n"
            srt = await create(model=MODEL, file=WAV, response_format="srt")
            assert srt.startswith("1\n00:00:00,000 --> 00:00:01,500\nHello <there>,\n\n2\n")
            assert "00:00:01,500 --> 01:01:01,250\n& good -> bye.\n\n3\n" in srt
            vtt = await create(model=MODEL, file=WAV, response_format="vtt")
            assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello &lt;there>,")
            verbose = await create(model=MODEL, file=WAV, response_format="verbose_json")
            assert verbose.duration == 3662.5
            assert [one.id for one in verbose.segments] == [0, 1, 2]
            assert verbose.segments[0].tokens == [5, 6]
            assert verbose.segments[1].no_speech_prob == 0.125
            assert verbose.language == ("german" if audio is client.audio.transcriptions else
                                        "english")  # fmt: skip
        assert [task.translate for task in transcribes(rig)] == [False] * 5 + [True] * 5
        timed = await client.audio.transcriptions.create(
            model=MODEL, file=WAV, response_format="verbose_json",
            timestamp_granularities=["word"], temperature=0.4,
        )  # fmt: skip
        assert timed.words is not None and timed.segments is None
        assert [(one.word, one.start) for one in timed.words] == [("Hello", 0), ("The", 3661.5)]
        assert (transcribes(rig)[-1].words, transcribes(rig)[-1].temperature) == (True, 0.4)
        both = await client.audio.transcriptions.create(
            model=MODEL, file=WAV, response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )  # fmt: skip
        assert both.words and both.segments


async def test_a_stream_has_the_text_part_by_part(rig: Rig) -> None:
    await serve(rig)
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="-") as client:
        stream = await client.audio.transcriptions.create(model=MODEL, file=WAV, stream=True)
        events = [event async for event in stream]
    *deltas, done = events
    assert [event.type for event in deltas] == ["transcript.text.delta"] * 2
    assert "".join(event.delta for event in deltas) == TEXT  # type: ignore[union-attr]
    assert done.type == "transcript.text.done"
    assert done.text == TEXT
    assert done.usage is not None and done.usage.input_token_details is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (183128, 11)
    assert done.usage.input_token_details.audio_tokens == 183125


async def test_a_stream_opens_while_its_sound_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.inference.answering.QUIET_S", 0.05)
    async with router_rig() as rig:
        await serve(rig, lambda task: ())
        form = aiohttp.FormData({"stream": "true"})
        form.add_field("file", WAV, filename="speech.wav")
        async with rig.http.post(f"{rig.url}/v1/audio/transcriptions", data=form) as response:
            assert response.status == 200
            async with asyncio.timeout(90):
                assert await response.content.readuntil(b"\n\n") == b": ping\n\n"
            await rig.supervisor.exited(INSTANCE, MODEL, ExitCause.KILLED, "")
            (error,) = data_lines(await response.read())
        assert json.loads(error)["error"]["code"] == ErrorCode.WORKER_KILLED


async def test_the_end_of_a_worker_ends_its_stream_with_an_error(rig: Rig) -> None:
    await serve(rig, lambda task: list(says(task))[:2])
    form = aiohttp.FormData({"stream": "true"})
    form.add_field("file", WAV, filename="speech.wav")
    async with rig.http.post(f"{rig.url}/v1/audio/transcriptions", data=form) as response:
        first = await response.content.readuntil(b"\n\n")
        assert b"Hello" in first
        await rig.supervisor.exited(INSTANCE, MODEL, ExitCause.EVICTED, "")
        rest = await response.read()
    (error,) = data_lines(rest)
    assert json.loads(error)["error"]["code"] == ErrorCode.MODEL_UNLOADED
    assert len(rig.worker.tasks) == 1, "what was told is not told again"


async def test_a_client_that_leaves_cancels_its_task() -> None:
    for fields in ({"stream": "true"}, {}):
        async with router_rig() as rig:
            await serve(rig, lambda task: list(says(task))[:2])
            form = aiohttp.FormData(fields)
            form.add_field("file", WAV, filename="speech.wav")
            sent = asyncio.create_task(
                _read(rig.http.post(f"{rig.url}/v1/audio/transcriptions", data=form))
            )
            await until(lambda: rig.worker.tasks)
            sent.cancel()
            with suppress(asyncio.CancelledError):
                await sent
            await until(lambda: rig.worker.cancelled_tasks)


async def _read(request: Any) -> bytes:
    async with request as response:
        body: bytes = await response.read()
        return body


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ([("response_format", "xml")], "response_format", ErrorCode.INVALID_VALUE),
        ([("response_format", "diarized_json")], "response_format", ErrorCode.INVALID_VALUE),
        ([("temperature", "2")], "temperature", ErrorCode.INVALID_VALUE),
        ([("temperature", "warm")], "temperature", ErrorCode.INVALID_TYPE),
        ([("stream", "maybe")], "stream", ErrorCode.INVALID_TYPE),
        ([("timestamp_granularities[]", "letter"), ("response_format", "verbose_json")],
         "timestamp_granularities[0]", ErrorCode.INVALID_VALUE),
        ([("timestamp_granularities[]", "word")],
         "timestamp_granularities", ErrorCode.UNSUPPORTED_VALUE),
        ([("stream", "true"), ("response_format", "srt")], "stream", ErrorCode.UNSUPPORTED_VALUE),
        ([("language", "en"), ("language", "de")], "language", ErrorCode.INVALID_VALUE),
        ([("prompt", "x" * 9000)], "prompt", ErrorCode.INVALID_VALUE),
        ([("keep_alive", "soon")], "keep_alive", ErrorCode.INVALID_VALUE),
        ([("file", "no file")], "file", ErrorCode.INVALID_TYPE),
        ([("prompt", io.BytesIO(b"Names."))], "prompt", ErrorCode.INVALID_TYPE),
        ([("stream", io.BytesIO(b"true"))], "stream", ErrorCode.INVALID_TYPE),
        ([("language", "en"), ("language[]", "de")], "language", ErrorCode.INVALID_VALUE),
    ],
)  # fmt: skip
async def test_what_a_field_can_not_be_is_refused_by_name(
    rig: Rig, fields: list[tuple[str, Any]], param: str, code: ErrorCode
) -> None:
    await serve(rig)
    is_file = fields[0][0] == "file"
    status, answer, _ = await post(rig, *fields, file=None if is_file else WAV)
    assert status == 400, answer
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, code)
    assert rig.worker.tasks == []


async def test_a_field_that_is_empty_counts_as_absent(rig: Rig) -> None:
    await serve(rig)
    names = ("language", "prompt", "stream", "temperature", "timestamp_granularities[]")
    status, answer, _ = await post(rig, *((name, "") for name in names))
    assert (status, answer["text"]) == (200, TEXT), answer


async def test_what_is_no_sound_is_refused_by_name(rig: Rig) -> None:
    await serve(rig)
    for content in (b"", b"no sound at all", b"\x89PNG\r\n\x1a\n" + bytes(20)):
        status, answer, _ = await post(rig, file=content)
        assert (status, answer["error"]["param"]) == (400, "file"), answer
    status, answer, _ = await post(rig, file=None)
    assert (status, answer["error"]["code"]) == (400, ErrorCode.MISSING_PARAMETER)
    assert answer["error"]["param"] == "file"


async def test_a_body_that_is_no_form_is_refused(rig: Rig) -> None:
    await serve(rig)
    status, answer = await rig.post_json("/v1/audio/transcriptions", file="x")
    assert (status, answer["error"]["code"]) == (415, ErrorCode.UNSUPPORTED_MEDIA_TYPE)
    url = f"{rig.url}/v1/audio/transcriptions"
    for kind, body in (
        ("multipart/form-data; boundary=x", b"--y\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n"),
        ("multipart/form-data", b""),
    ):
        async with rig.http.post(url, data=body, headers={"Content-Type": kind}) as response:
            assert response.status == 400, await response.text()


async def test_a_file_beyond_the_limit_is_refused_before_it_is_read(rig: Rig) -> None:
    await serve(rig)
    limit_bytes = rig.spec.media.max_item_bytes
    status, answer, _ = await post(rig, file=WAV + bytes(limit_bytes))
    assert (status, answer["error"]["code"]) == (413, ErrorCode.REQUEST_TOO_LARGE)
    assert answer["error"]["param"] == "file"
    assert "media.max_item_bytes" in answer["error"]["message"]


async def test_the_files_of_a_form_without_a_size_are_counted_together() -> None:
    async with router_rig(media=MediaLimits(max_item_bytes=100_000)) as rig:
        await serve(rig)

        async def body() -> AsyncIterator[bytes]:
            for name in ("file", "other"):
                head = f'Content-Disposition: form-data; name="{name}"; filename="f"'
                yield b"--B\r\n" + head.encode() + b"\r\n\r\n" + WAV + bytes(60_000) + b"\r\n"
            yield b"--B--\r\n"

        headers = {"Content-Type": "multipart/form-data; boundary=B"}
        url = f"{rig.url}/v1/audio/transcriptions"
        async with rig.http.post(url, data=body(), headers=headers) as response:
            answer = await response.json()
            assert (response.status, answer["error"]["code"]) == (413, "request_too_large"), answer
        assert rig.worker.tasks == []


async def test_what_changes_nothing_is_named(rig: Rig) -> None:
    await serve(rig)
    status, _, response = await post(
        rig, ("include[]", "logprobs"), ("chunking_strategy", "auto"), ("user", "u")
    )
    assert status == 200
    assert response.headers["X-Lmx-Ignored"] == "include[], chunking_strategy, user"


async def test_models_of_other_kinds_are_refused_with_their_route(rig: Rig) -> None:
    await serve(rig, kind=ModelKind.CHAT)
    status, answer, _ = await post(rig)
    assert (status, answer["error"]["param"]) == (400, "model")
    assert "/v1/chat/completions" in answer["error"]["message"]


async def test_the_refusal_of_a_worker_is_reported(rig: Rig) -> None:
    refusal = (ErrorCode.INVALID_VALUE, "no such language", "language")
    await serve(rig, lambda task: [Refused(task.stream_id, *refusal)])
    for stream in ("false", "true"):
        status, answer, _ = await post(rig, ("stream", stream))
        assert (status, answer["error"]["param"]) == (400, "language"), answer


async def test_a_transcript_is_measured_by_its_sound(rig: Rig) -> None:
    await serve(rig)
    await post(rig)
    await until(lambda: rig.router.metrics.read().models[MODEL].requests)
    histograms = rig.router.metrics.read().models[MODEL].histograms
    assert histograms["request_audio_seconds"].total == 3662.5
    assert 0 < histograms["request_audio_real_time_factor"].total < 1


async def test_operators_see_and_cancel_it(rig: Rig) -> None:
    await serve(rig, lambda task: list(says(task))[:1])
    sent = asyncio.create_task(post(rig))
    await until(lambda: rig.worker.tasks)
    _, listed = await rig.admin("GET", "/admin/requests")
    (live,) = listed["data"]
    assert (live["kind"], live["state"], live["model"]) == ("transcription", "running", MODEL)
    await rig.admin("POST", f"/admin/requests/{live['id']}/cancel")
    status, answer, _ = await sent
    assert answer["error"]["code"] == ErrorCode.REQUEST_CANCELLED, status
    await until(lambda: rig.worker.cancelled_tasks)


@pytest.mark.parametrize("name", ["a\x18b", "\xbd\x17", ""])
async def test_a_form_whose_parts_have_no_proper_heads_is_refused(name: str) -> None:
    head = f'Content-Disposition: form-data; name="{name}"'.encode()
    data = b"--B\r\n" + head + b"\r\n\r\nv\r\n--B--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    async with (
        router_rig() as rig,
        rig.http.post(f"{rig.url}/v1/audio/transcriptions", data=data, headers=headers) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("name", "count", "code"),
    [
        (b"_charset_", 1, "invalid_json"),
        (b"M\xfcller", 1, "missing_required_parameter"),
        (b"M\xfcller", 2, "invalid_value"),
    ],
)
async def test_no_name_of_a_field_breaks_the_answer(
    rig: Rig, name: bytes, count: int, code: str
) -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name, b"v" * 40)
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    url = f"{rig.url}/v1/audio/transcriptions"
    async with rig.http.post(url, data=part * count + b"--B--\r\n", headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == code
