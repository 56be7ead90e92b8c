"""From a generation to an HTTP response, as a stream or whole, for every kind of completion."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final

import orjson
import structlog
from aiohttp import web

from lmx.protocol.control import ModelView
from lmx.protocol.data import ChoiceEnded, Finished
from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router.chunks import ChoiceShape, ChunkWriter, error_event
from lmx.router.envelope import (
    Clocked,
    Form,
    Identity,
    fingerprint,
    head_object,
    timings_object,
    usage_object,
)
from lmx.router.gathering import GatheredChoice
from lmx.router.generation import Generation
from lmx.router.opening import telling
from lmx.router.prompt_group import PromptGroup
from lmx.router.services import SERVICES, Services
from lmx.router.sse import DONE, EventStream
from lmx.router.traffic import RECORD, Record

_GATHER_WAIT_S: Final = 60.0
"""How long one wait for more of an answer that does not stream lasts; then the next begins."""

_Source = Generation | PromptGroup

_log = structlog.get_logger()


def is_ovms(request: web.Request) -> bool:
    """Return whether a request came by the path of OpenVINO Model Server, whose rules differ."""
    return request.path.startswith("/v3/")


def new_identity(prefix: str, services: Services, model: ModelView) -> Identity:
    """Return the identity of a new completion; ``prefix`` begins its id."""
    return Identity(
        completion_id=f"{prefix}-{secrets.token_hex(12)}",
        created_s=int(time.time()),
        model_id=model.model_id,
        fingerprint=fingerprint(services.spec.version, model.model_id, model.source),
    )


async def answer_whole(
    opening: AbstractAsyncContextManager[_Source],
    record: Record,
    identity: Identity,
    form: Form,
    shape: ChoiceShape,
) -> web.Response:
    """Wait for all that the generation of ``opening`` makes and return it. Raises when it is
    refused or lost."""
    async with opening as generation:
        record.prompt_tokens = generation.prompt_tokens
        return await _gather(generation, record, identity, form, shape)


async def _gather(
    generation: _Source, record: Record, identity: Identity, form: Form, shape: ChoiceShape
) -> web.Response:
    choices = [GatheredChoice() for _ in range(form.choices)]
    ends: dict[int, ChoiceEnded] = {}
    while True:
        batch = await generation.take(_GATHER_WAIT_S)
        if batch.deltas:
            record.note_output(time.monotonic())
        for delta in batch.deltas:
            choices[delta.index].add(delta)
        ends.update((fact.index, fact) for fact in batch.ended)
        if batch.finished is not None:
            _note_ends(record, ends.values())
            clocked = _clocked(record, generation, batch.finished)
            answer: dict[str, Any] = {
                **head_object(identity, shape.whole_object),
                "choices": [
                    shape.whole(ends[index], choice) for index, choice in enumerate(choices)
                ],
                "usage": usage_object(batch.finished.usage),
                "timings": timings_object(batch.finished, clocked),
            }
            return web.Response(body=orjson.dumps(answer), content_type="application/json")


async def answer_stream(
    request: web.Request,
    opening: AbstractAsyncContextManager[_Source],
    identity: Identity,
    form: Form,
    shape: ChoiceShape,
) -> web.StreamResponse:
    """Send the answer of the generation that ``opening`` begins, as it comes.

    What can be refused at once raises. What is lost after the headers went out, with the answer
    or while a model is waited for, ends the stream with an error event.
    """
    services, record = request.app[SERVICES], request[RECORD]
    ping_interval_s = services.spec.ping_interval_s
    events = EventStream(request, services.spec.stall_timeout_s)
    writer = ChunkWriter(identity, form, shape)
    try:
        async with AsyncExitStack() as until_sent:
            async with telling(
                events, lambda: services.room.news(identity.model_id), ping_interval_s
            ):
                generation = await until_sent.enter_async_context(opening)
            record.prompt_tokens = generation.prompt_tokens
            if not events.is_open:
                await events.open()
            await _pump(generation, record, events, writer, ping_interval_s)
        await events.end()
        return events.response
    except LmxError as error:
        if not events.is_open:
            raise
        lost = error
    except ConnectionError:
        # The client has left: there is nobody to tell.
        raise
    except Exception:
        if not events.is_open:
            raise
        _log.exception("stream.failed")
        lost = LmxError(
            ErrorCode.INTERNAL,
            f"An internal error occurred. The log has the details under {record.request_id}.",
        )
    record.error = lost.code.value
    if lost.code is not ErrorCode.CLIENT_STALLED:
        await events.send(error_event(lost))
        await events.end()
    return events.response


async def _pump(
    generation: _Source,
    record: Record,
    events: EventStream,
    writer: ChunkWriter,
    ping_interval_s: float,
) -> None:
    if beginning := writer.first():
        await events.send(beginning)
    while True:
        batch = await generation.take(ping_interval_s)
        data = b""
        if batch.deltas:
            record.note_output(time.monotonic())
            data = writer.deltas(batch.deltas)
        if batch.ended:
            _note_ends(record, batch.ended)
            data += writer.ends(batch.ended)
        if batch.finished is not None:
            clocked = _clocked(record, generation, batch.finished)
            await events.send(data + writer.last(batch.finished, clocked) + DONE)
            return
        if data:
            await events.send(data)
        elif not batch.deltas and not batch.ended:
            await events.ping()


def _note_ends(record: Record, ended: Iterable[ChoiceEnded]) -> None:
    # The answers of one request may end for several reasons; the log names each once.
    known = record.finish_reason.split(",") if record.finish_reason else []
    reasons = dict.fromkeys([*known, *(fact.reason.value for fact in ended)])
    record.finish_reason = ",".join(reasons)


def _clocked(record: Record, generation: _Source, finished: Finished) -> Clocked:
    """Take the time at the end of a generation, and note what it has come to."""
    record.prompt_tokens = finished.usage.prompt_tokens
    record.cached_tokens = finished.usage.cached_tokens
    record.completion_tokens = finished.usage.completion_tokens
    record.load_s = generation.load_s
    record.queue_s = finished.timings.queue_s
    record.prefill_s = finished.timings.prefill_s
    record.decode_s = finished.timings.decode_s
    total_s = time.monotonic() - record.started_at
    first_token_s = total_s if record.ttft_s is None else record.ttft_s
    return Clocked(total_s=total_s, first_token_s=first_token_s, load_s=generation.load_s)
