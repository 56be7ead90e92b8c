"""POST /v1/embeddings: texts to vectors."""

from __future__ import annotations

import asyncio
import secrets
import struct
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
from aiohttp import web

from lmx.protocol.messages.tasks import TaskFinished, Vectors
from lmx.protocol.states import ModelKind
from lmx.router.http.body import read_object
from lmx.router.http.request_record import RECORD
from lmx.router.http.responses import json_text
from lmx.router.jobs.live import RequestKind
from lmx.router.schema.requests.tasks import EMBEDDING, EmbeddingRequest, parse_embedding
from lmx.router.schema.requests.unsupported import log_ignored
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import require_kind
from lmx.router.supervisor.routing import candidates
from lmx.router.workers.fallback import perform_on_first
from lmx.router.workers.task import TaskAnswer

_AT_ONCE: Final = 64
"""Vectors that are written out before others get their turn on the loop: some milliseconds."""


async def embeddings(request: web.Request) -> web.Response:
    """Return a vector for each input, in the inputs' order."""
    services, record = request.app[SERVICES], request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted, embed = parse_embedding(body)
    log_ignored(body, EmbeddingRequest, EMBEDDING)
    models = candidates(await services.supervisor.directory(), wanted.model, ModelKind.EMBEDDING)
    record.model = models[0].model_id
    require_kind(models[0], ModelKind.EMBEDDING)
    task = replace(embed, request_id=record.request_id)
    model, answer = await services.live.perform(
        f"embd-{secrets.token_hex(12)}",
        RequestKind.EMBEDDING,
        record,
        request.remote,
        perform_on_first(services.tasks, record, models, task),
    )
    assert isinstance(answer.last, TaskFinished)
    record.prompt_tokens = answer.last.prompt_tokens
    data = await _data(answer, as_base64=wanted.encoding_format == "base64")
    rest = orjson.dumps(
        {
            "model": model.model_id,
            "usage": {
                "prompt_tokens": answer.last.prompt_tokens,
                "total_tokens": answer.last.prompt_tokens,
            },
        }
    )
    whole = b'{"object":"list","data":[' + b",".join(data) + b"]," + rest[1:]
    return json_text(whole)


async def _data(answer: TaskAnswer, *, as_base64: bool) -> list[bytes]:
    objects: dict[int, bytes] = {}
    for part in answer.parts:
        assert isinstance(part, Vectors)
        for index, vector in _split(part):
            shown = b64encode(vector).decode() if as_base64 else _floats(vector)
            objects[index] = orjson.dumps(
                {"object": "embedding", "index": index, "embedding": shown}
            )
            if len(objects) % _AT_ONCE == 0:
                await asyncio.sleep(0)
    return [objects[index] for index in range(len(objects))]


def _split(part: Vectors) -> Iterator[tuple[int, bytes]]:
    size_bytes = 4 * part.dimensions
    for place, index in enumerate(part.indexes):
        yield index, part.data[place * size_bytes : (place + 1) * size_bytes]


def _floats(vector: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)
