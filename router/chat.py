"""POST /v1/chat/completions, as a stream and as one answer."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

import orjson
import structlog
from aiohttp import web

from lmx.protocol.data import Finished, Generate, Sampling
from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router.body import read_object
from lmx.router.chunks import (
    ChunkWriter,
    Clocked,
    Identity,
    completion_object,
    error_event,
    fingerprint,
)
from lmx.router.generation import Generation
from lmx.router.schemas import ChatRequest, parse_chat, unknown_fields
from lmx.router.services import SERVICES
from lmx.router.sse import DONE, EventStream
from lmx.router.traffic import RECORD, Record
from lmx.router.unsupported import is_listed

_GATHER_WAIT_S: Final = 60.0
"""How long one wait for more of an answer that does not stream lasts; then the next begins."""

_log = structlog.get_logger()


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation.

    Whatever can be refused is refused with its own status before a stream's headers go out.
    """
    services = request.app[SERVICES]
    record = request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    chat = parse_chat(body)
    ignored = [name for name in unknown_fields(body) if not is_listed(name)]
    if ignored:
        _log.debug("chat.fields_ignored", fields=ignored[:20])
    model = (await services.supervisor.directory()).resolve(chat.model)
    record.model, record.stream = model.model_id, bool(chat.stream)
    identity = Identity(
        completion_id=f"chatcmpl-{secrets.token_hex(12)}",
        created_s=int(time.time()),
        model_id=model.model_id,
        fingerprint=fingerprint(services.spec.version, model.model_id, model.source),
    )
    async with services.dispatcher.generate(model, to_generate(chat, record)) as generation:
        record.prompt_tokens = generation.prompt_tokens
        if not chat.stream:
            return await _answer_whole(generation, record, identity)
        events = EventStream(request, services.spec.stall_timeout_s)
        writer = ChunkWriter(identity, include_usage=chat.include_usage)
        await events.open()
        await _answer_stream(generation, record, events, writer, services.spec.ping_interval_s)
        return events.response


def to_generate(chat: ChatRequest, record: Record) -> Generate:
    """Return the request as a worker takes it. Its stream id and credit are the link's to set."""
    return Generate(
        stream_id=0,
        request_id=record.request_id,
        messages=tuple(message.plain() for message in chat.messages),
        sampling=Sampling(temperature=chat.temperature, top_p=chat.top_p, seed=chat.seed),
        credit_deltas=0,
        max_tokens=chat.token_limit,
        stop=chat.stop_texts,
        template_kwargs=chat.chat_template_kwargs,
    )


async def _answer_whole(generation: Generation, record: Record, identity: Identity) -> web.Response:
    pieces: list[str] = []
    while True:
        batch = await generation.take(_GATHER_WAIT_S)
        if batch.deltas:
            _note_first(record)
            pieces.extend(delta.text for delta in batch.deltas)
        if batch.finished is not None:
            clocked = _clocked(record, generation, batch.finished)
            answer: dict[str, Any] = completion_object(
                identity, "".join(pieces), batch.finished, clocked
            )
            return web.Response(body=orjson.dumps(answer), content_type="application/json")


async def _answer_stream(
    generation: Generation,
    record: Record,
    events: EventStream,
    writer: ChunkWriter,
    ping_interval_s: float,
) -> None:
    # The headers are out: from here on an error can only be an event, never a status.
    try:
        await _pump(generation, record, events, writer, ping_interval_s)
        await events.end()
        return
    except LmxError as error:
        lost = error
    except ConnectionError:
        # The client has left: there is nobody to tell.
        raise
    except Exception:
        _log.exception("stream.failed")
        lost = LmxError(
            ErrorCode.INTERNAL,
            f"An internal error occurred. The log has the details under {record.request_id}.",
        )
    record.error = lost.code.value
    if lost.code is not ErrorCode.CLIENT_STALLED:
        await events.send(error_event(lost))
        await events.end()


async def _pump(
    generation: Generation,
    record: Record,
    events: EventStream,
    writer: ChunkWriter,
    ping_interval_s: float,
) -> None:
    await events.send(writer.first())
    while True:
        batch = await generation.take(ping_interval_s)
        data = b""
        if batch.deltas:
            _note_first(record)
            data = writer.deltas(batch.deltas)
        if batch.finished is not None:
            clocked = _clocked(record, generation, batch.finished)
            await events.send(data + writer.last(batch.finished, clocked) + DONE)
            return
        if data:
            await events.send(data)
        elif not batch.deltas:
            await events.ping()


def _note_first(record: Record) -> None:
    if record.ttft_s is None:
        record.ttft_s = time.monotonic() - record.started_at


def _clocked(record: Record, generation: Generation, finished: Finished) -> Clocked:
    """Take the time at the end of a generation, and note how it ended."""
    record.finish_reason = finished.reason.value
    record.prompt_tokens = finished.usage.prompt_tokens
    record.completion_tokens = finished.usage.completion_tokens
    total_s = time.monotonic() - record.started_at
    first_token_s = total_s if record.ttft_s is None else record.ttft_s
    return Clocked(total_s=total_s, first_token_s=first_token_s, load_s=generation.load_s)
