"""POST /api/chat, /api/generate, /api/embed and /api/embeddings: Ollama's API."""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from lmx.protocol.messages.data import Generate, Infill
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Embed
from lmx.protocol.states import SlotState
from lmx.router.http.api_family import OLLAMA
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.outcome import note_ignored
from lmx.router.http.responses import Answer, json_pieces, json_text
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.embeddings import as_array, written_vectors
from lmx.router.inference.media import generation
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.prompts import prepared
from lmx.router.inference.tasks import Computed, compute, read_task
from lmx.router.jobs.live import RequestKind
from lmx.router.media.source import MediaSource
from lmx.router.rendering.ollama import OllamaAnswer, nanoseconds
from lmx.router.schema.requests.ollama.chat import OllamaChatRequest, parse_ollama_chat
from lmx.router.schema.requests.ollama.common import ignored_options
from lmx.router.schema.requests.ollama.embed import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    parse_ollama_embed,
    parse_ollama_embeddings,
)
from lmx.router.schema.requests.ollama.generate import OllamaGenerateRequest, parse_ollama_generate
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES, directory_for
from lmx.router.supervisor.routing import untagged


class OllamaEmbedAnswer(Answer):
    """The answer of POST /api/embed."""

    model: str
    """The name that the request gave."""
    embeddings: list[list[float]]
    """A vector for each text, in the texts' order."""
    prompt_eval_count: int
    """Tokens of all texts."""
    total_duration: int
    load_duration: int
    """It is always 0: waiting for the model is part of the total."""


class OllamaEmbeddingsAnswer(Answer):
    """The answer of POST /api/embeddings."""

    embedding: list[float]


async def ollama_chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    return await _generated(request, parse_ollama_chat)


async def ollama_generate(request: web.Request) -> web.StreamResponse:
    """Answer a prompt, or continue it."""
    return await _generated(request, parse_ollama_generate)


async def ollama_embed(request: web.Request) -> web.Response:
    """Return a vector for each text, in the texts' order."""
    started_s = time.monotonic()
    wanted, embed = await read_task(request, parse_ollama_embed, OllamaEmbedRequest)
    computed = await _embedded(request, wanted.model, embed)
    vectors = await written_vectors(computed, as_array) if computed else []
    rest = orjson.dumps(
        {
            "model": wanted.model,
            "prompt_eval_count": computed.prompt_tokens if computed else 0,
            "total_duration": nanoseconds(time.monotonic() - started_s),
            "load_duration": 0,
        }
    )
    return json_pieces([b'{"embeddings":[', *vectors, b"]," + rest[1:]])


async def ollama_embeddings(request: web.Request) -> web.Response:
    """Return the vector of one text."""
    wanted, embed = await read_task(request, parse_ollama_embeddings, OllamaEmbeddingsRequest)
    computed = await _embedded(request, wanted.model, embed)
    (vector,) = await written_vectors(computed, as_array) if computed else (b"[]",)
    return json_text(b'{"embedding":' + vector + b"}")


async def _generated(
    request: web.Request,
    parse: Callable[
        [dict[str, Any]],
        tuple[OllamaChatRequest | OllamaGenerateRequest, Generate, Sequence[MediaSource]],
    ],
) -> web.StreamResponse:
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    wanted, generate, sources = parse(body)
    await next_step(request)
    note_ignored(request, [*ignored_fields(body, type(wanted), {}), *ignored_options(body)])
    stream, infill = wanted.streams, generate.infill
    models = await _models(request, wanted.model, stream=stream, media=sources, infill=infill)
    generate = prepared(request, generate, "messages.tool_name")
    chat = isinstance(wanted, OllamaChatRequest)
    loaded, turns = None, None
    if wanted.only_loads:
        loaded = "unload" if generate.keep_alive_s == 0 else "load"
    elif isinstance(wanted, OllamaGenerateRequest) and wanted.in_template:
        turns = wanted.turns
    form = OllamaAnswer(
        wanted.model,
        chat=chat,
        loaded=loaded,
        logprobs=generate.top_logprobs is not None,
        stream=stream,
        turns=turns,
    )
    if loaded == "unload" and models[0].slot is not SlotState.OCCUPIED:
        # Otherwise it would be loaded first, and others evicted for it.
        return _unloaded(form, stream=stream)
    kind = RequestKind.CHAT if chat else RequestKind.COMPLETION
    plan = Plan(models, generation(request, generate, sources), form, kind, "ollama-")
    # Media may be megabytes of text, which nobody needs for as long as the answer takes.
    del body, wanted, sources
    await next_step(request)
    return await answer(request, plan, stream=stream)


def _unloaded(form: OllamaAnswer, *, stream: bool) -> web.StreamResponse:
    answer = orjson.dumps(form.unloaded(int(time.time())))
    if not stream:
        return json_text(answer)
    return web.Response(body=answer + b"\n", content_type=OLLAMA.stream_type)


async def _embedded(request: web.Request, name: str, embed: Embed) -> Computed | None:
    """Return the vectors of the texts; None if there is no text."""
    models = await _models(request, name)
    if not embed.texts:
        return None
    answer_id = f"embd-{secrets.token_hex(12)}"
    return await compute(request, models, embed, RequestKind.EMBEDDING, answer_id)


async def _models(
    request: web.Request,
    name: str,
    *,
    stream: bool | None = None,
    media: Sequence[MediaSource] = (),
    infill: Infill | None = None,
) -> Sequence[ModelView]:
    """Return what :func:`lmx.router.inference.model_choice.models_of_kind` returns, for a name that
    may have Ollama's tag."""
    plain = untagged(await directory_for(request), name)
    return await models_of_kind(request, plain, stream=stream, media=media, infill=infill)
