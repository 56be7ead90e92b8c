"""POST /v1/audio/transcriptions and /v1/audio/translations: speech to text."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.speech import Transcribe, Transcript
from lmx.protocol.states import MediaKind
from lmx.router.http.bodies.form import read_form
from lmx.router.http.endpoint import family_of
from lmx.router.http.outcome import CONTEXT, Outcome, follow_outcome, note_ignored
from lmx.router.http.sse import EventStream
from lmx.router.inference.answering import relay_parts
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.tasks import ListedTask, end_work
from lmx.router.jobs.live import RequestKind
from lmx.router.media.source import HeldMedia
from lmx.router.rendering.transcripts import (
    FORMATS,
    JSON,
    VERBOSE,
    CompleteTranscript,
    TranscriptEvents,
    complete_transcript,
    verbose_transcript,
)
from lmx.router.schema.requests.audio import (
    TranscriptionRequest,
    TranslationRequest,
    ignored_form_fields,
    parse_transcription,
    parse_translation,
)
from lmx.router.services import SERVICES
from lmx.router.workers.task import OrderedPart


async def transcriptions(request: web.Request) -> web.StreamResponse:
    """Transcribe speech in the language that is spoken."""
    form = await read_form(request, request.app[SERVICES].spec.media.max_item_bytes)
    wanted, task = parse_transcription(form)
    note_ignored(request, ignored_form_fields(form, TranscriptionRequest))
    async with _opened(request, wanted, task, stream=bool(wanted.stream)) as work:
        if wanted.stream:
            return await work.stream()
        return _response(wanted, await work.complete(), wanted.segments, wanted.words)


async def translations(request: web.Request) -> web.StreamResponse:
    """Transcribe speech into English."""
    form = await read_form(request, request.app[SERVICES].spec.media.max_item_bytes)
    wanted, task = parse_translation(form)
    note_ignored(request, ignored_form_fields(form, TranslationRequest))
    async with _opened(request, wanted, task, stream=False) as work:
        return _response(wanted, await work.complete(), segments=True, words=False)


@asynccontextmanager
async def _opened(
    request: web.Request, wanted: TranslationRequest, task: Transcribe, *, stream: bool
) -> AsyncIterator[_Transcription]:
    models = await models_of_kind(request, wanted.model, stream=stream)
    media = request.app[SERVICES].media
    async with media.hold(wanted.sound, MediaKind.AUDIO, "file") as held:
        yield _Transcription(request, models, task, held)


def _response(
    wanted: TranslationRequest, whole: CompleteTranscript, segments: bool, words: bool
) -> web.Response:
    if wanted.response_format == VERBOSE:
        translated = not isinstance(wanted, TranscriptionRequest)
        text = verbose_transcript(whole, translated=translated, segments=segments, words=words)
        return web.Response(body=text, content_type=JSON)
    media, write = FORMATS[wanted.response_format or "json"]
    charset = None if media == JSON else "utf-8"
    return web.Response(body=write(whole), content_type=media, charset=charset)


class _Transcription:
    """One sound that is being transcribed."""

    def __init__(
        self, request: web.Request, models: Sequence[ModelView], task: Transcribe, held: HeldMedia
    ) -> None:
        self._request = request
        self._services = request.app[SERVICES]
        self._listed = ListedTask(
            request,
            models,
            replace(task, media=held.items),
            RequestKind.TRANSCRIPTION,
            f"transcr-{secrets.token_hex(12)}",
            held.blobs,
        )
        self._live = self._listed.live
        self._transcript: CompleteTranscript | None = None
        follow_outcome(request, self._outcome)

    async def complete(
        self, on_part: Callable[[OrderedPart], None] | None = None
    ) -> CompleteTranscript:
        """Return the whole transcript; ``on_part`` is called with each part as it comes. Raises the
        error of its refusal, or REQUEST_CANCELLED."""
        computed = await self._listed.perform(on_part)
        parts = [part for part in computed.parts if isinstance(part, Transcript)]
        self._transcript = complete_transcript(parts, computed.prompt_tokens)
        return self._transcript

    async def stream(self) -> web.StreamResponse:
        """Send the text as it is written. Errors before the stream's headers are sent are raised;
        later ones end the stream with an error event."""
        self._live.stream = True
        events = EventStream(self._request, self._services.spec.stall_timeout_s)
        # There are no more parts than the sound has windows.
        parts: asyncio.Queue[Transcript | None] = asyncio.Queue()

        def take(part: OrderedPart) -> None:
            assert isinstance(part, Transcript)
            parts.put_nowait(part)

        work = asyncio.create_task(self.complete(take), name=self._live.id)
        work.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            await self._relay(events, parts, work)
        except LmxError as error:
            if not events.is_open:
                raise
            code = error.code
            follow_outcome(self._request, lambda: replace(self._outcome(), error=code.value))
            if code is not ErrorCode.CLIENT_STALLED:
                event = family_of(self._request).error_event
                await events.send(event(error, self._request[CONTEXT].request_id))
                await events.end()
        finally:
            await end_work(work)
        return events.response

    async def _relay(
        self,
        events: EventStream,
        parts: asyncio.Queue[Transcript | None],
        work: asyncio.Task[CompleteTranscript],
    ) -> None:
        services, writer = self._services, TranscriptEvents()
        await relay_parts(
            events,
            parts.get,
            writer.delta,
            lambda: services.queues.progress(self._live.model_id),
            services.spec.ping_interval_s,
        )
        await events.send(writer.done(await work))
        await events.end()

    def _outcome(self) -> Outcome:
        known = Outcome(model=self._live.model_id, stream=self._live.stream)
        if self._transcript is None:
            return known
        return replace(
            known,
            prompt_tokens=self._transcript.input_tokens,
            completion_tokens=self._transcript.output_tokens,
            audio_s=self._transcript.duration_s,
        )
