"""POST /v1/audio/speech: text to speech; and GET /v1/audio/voices."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.speech import SoundFormat, Speak, Spoken
from lmx.protocol.models.voices import KOKORO_LANGUAGES
from lmx.router.http.endpoint import family_of
from lmx.router.http.outcome import CONTEXT, Outcome, follow_outcome
from lmx.router.http.responses import Answer, json_value
from lmx.router.http.sse import EventStream
from lmx.router.inference.answering import relay_parts
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.tasks import ListedTask, end_work, read_task
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.transcripts import AUDIO_TOKENS_PER_SECOND
from lmx.router.schema.requests.audio import SpeechRequest, parse_speech
from lmx.router.services import SERVICES, listed_for
from lmx.router.workers.task import OrderedPart

MEDIA_TYPES: Final = {
    SoundFormat.MP3: "audio/mpeg",
    SoundFormat.OPUS: "audio/ogg",
    SoundFormat.AAC: "audio/aac",
    SoundFormat.FLAC: "audio/flac",
    SoundFormat.WAV: "audio/wav",
    SoundFormat.PCM: "audio/pcm",
}

_MOST_WAITING_BYTES: Final = 32 << 20
"""How much of a sound waits for a client that reads slower than the model speaks: 11 minutes of the
largest form."""


class SpeechDelta(Answer):
    """The next part of the sound, in a stream of events."""

    type: Literal["speech.audio.delta"]
    audio: str
    """Bytes in base64. All of them, joined, are the file."""


class SpeechUsage(Answer):
    """How many tokens a sound took."""

    input_tokens: int
    """Those of the text, as the model takes it: phonemes for Kokoro."""
    output_tokens: int
    """50 for each second of the sound."""
    total_tokens: int


class SpeechDone(Answer):
    """The end of a stream of events."""

    type: Literal["speech.audio.done"]
    usage: SpeechUsage
    """How many tokens it took."""


class Voice(Answer):
    """A voice of a model."""

    id: str
    """What `voice` may be in a request to the model."""
    object: Literal["voice"]
    name: str
    """The same."""
    model: str
    """The id of the model that has it."""
    language: str | None
    """The language that it speaks, where the model's voices have one each."""


class VoiceList(Answer):
    """The voices of all models that read texts aloud, loaded or not."""

    object: Literal["list"]
    data: list[Voice]
    voices: list[Voice]
    """The same, for clients that look for it by this name."""


async def voices(request: web.Request) -> web.Response:
    """Return the voices of the models that the key may use."""
    found = [
        Voice(
            id=name,
            object="voice",
            name=name,
            model=model.model_id,
            language=KOKORO_LANGUAGES.get(name[0]) if model.family == "kokoro" else None,
        )
        for model in (await listed_for(request)).models
        for name in model.voices
    ]
    return json_value(VoiceList(object="list", data=found, voices=found))


async def speech(request: web.Request) -> web.StreamResponse:
    """Read a text aloud. The sound is sent sentence by sentence, as it is made."""
    wanted, task = await read_task(request, parse_speech, SpeechRequest)
    sse = wanted.stream_format == "sse"
    models = await models_of_kind(request, wanted.model, stream=sse)
    return await _Speech(request, models, task).answer(sse=sse)


class _Speech:
    """One text that is being read aloud."""

    def __init__(self, request: web.Request, models: Sequence[ModelView], task: Speak) -> None:
        self._request = request
        self._services = request.app[SERVICES]
        self._format = task.format
        answer_id = f"speech-{secrets.token_hex(12)}"
        self._listed = ListedTask(request, models, task, RequestKind.SPEECH, answer_id)
        self._live = self._listed.live
        # There are no more parts than the text has sentences, and no more bytes than below.
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._work: asyncio.Task[None] | None = None
        self._sound_s = 0.0
        self._input_tokens: int | None = None
        follow_outcome(request, self._outcome)

    async def answer(self, *, sse: bool) -> web.StreamResponse:
        """Send the sound. Errors before its first bytes are raised; later ones end the stream: with
        an error event, or for a sound with the connection, so that nobody takes it for whole."""
        self._live.stream = sse
        stall_timeout_s = self._services.spec.stall_timeout_s
        media_type = None if sse else MEDIA_TYPES[self._format]
        events = EventStream(self._request, stall_timeout_s, media_type)
        work = self._work = asyncio.create_task(self._perform(), name=self._live.id)
        work.add_done_callback(lambda _: self._parts.put_nowait(None))
        try:
            await (self._send_events(events) if sse else self._send_sound(events))
            await work
            if not events.is_open:  # No sound came of the text.
                await events.open()
            if sse:
                await events.send(_event(SpeechDone(type="speech.audio.done", usage=self._usage())))
            await events.end()
        except LmxError as error:
            if not events.is_open:
                raise
            code = error.code
            follow_outcome(self._request, lambda: replace(self._outcome(), error=code.value))
            await self._break_off(events, error, sse=sse)
        finally:
            await end_work(work)
        return events.response

    async def _perform(self) -> None:
        self._input_tokens = (await self._listed.perform(self._take)).prompt_tokens

    def _take(self, part: OrderedPart) -> None:
        assert isinstance(part, Spoken)
        self._sound_s += part.duration_s
        self._waiting_bytes += len(part.data)
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            assert self._work is not None
            self._work.cancel()
        elif part.data:
            self._parts.put_nowait(part.data)

    async def _next(self) -> bytes | None:
        part = await self._parts.get()
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            raise GenerationError(
                ErrorCode.CLIENT_STALLED,
                f"The client reads slower than the model speaks: {_MOST_WAITING_BYTES >> 20} MiB "
                "of the sound waited for it.",
            )
        self._waiting_bytes -= len(part or b"")
        return part

    async def _send_sound(self, events: EventStream) -> None:
        while (part := await self._next()) is not None:
            if not events.is_open:
                await events.open()
            await events.send(part)

    async def _send_events(self, events: EventStream) -> None:
        services = self._services
        await relay_parts(
            events,
            self._next,
            _delta,
            lambda: services.queues.progress(self._live.model_id),
            services.spec.ping_interval_s,
        )

    async def _break_off(self, events: EventStream, error: LmxError, *, sse: bool) -> None:
        if sse and error.code is not ErrorCode.CLIENT_STALLED:
            event = family_of(self._request).error_event
            await events.send(event(error, self._request[CONTEXT].request_id))
            await events.end()
        elif self._request.transport is not None:
            self._request.transport.abort()

    def _usage(self) -> SpeechUsage:
        given, made = self._input_tokens or 0, self._output_tokens
        return SpeechUsage(input_tokens=given, output_tokens=made, total_tokens=given + made)

    @property
    def _output_tokens(self) -> int:
        return int(self._sound_s * AUDIO_TOKENS_PER_SECOND)

    def _outcome(self) -> Outcome:
        return Outcome(
            model=self._live.model_id,
            stream=self._live.stream,
            prompt_tokens=self._input_tokens,
            completion_tokens=self._output_tokens if self._sound_s else None,
            audio_s=self._sound_s or None,
        )


def _delta(part: bytes) -> bytes:
    return _event(SpeechDelta(type="speech.audio.delta", audio=base64.b64encode(part).decode()))


def _event(value: SpeechDelta | SpeechDone) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
