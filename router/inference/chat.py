"""POST /v1/chat/completions, as a stream and as one answer."""

from __future__ import annotations

from aiohttp import web

from lmx.protocol.states import ModelKind
from lmx.router.http.access import own_request
from lmx.router.http.body import read_object
from lmx.router.http.request_record import RECORD
from lmx.router.inference.answering import answer_stream, answer_whole, is_ovms, new_identity
from lmx.router.jobs.job import Job
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.chat import ChatShape
from lmx.router.rendering.envelope import Form
from lmx.router.schema.requests.chat import ChatRequest, parse_chat
from lmx.router.schema.requests.unsupported import CHAT, log_ignored
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import require_kind
from lmx.router.supervisor.routing import candidates
from lmx.router.workers.fallback import first_opened


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation.

    What is refused soon is refused with its own status, before a stream's headers go out.
    """
    services, record = request.app[SERVICES], request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    chat, generate = parse_chat(body, ovms=is_ovms(request))
    log_ignored(body, ChatRequest, CHAT)
    models = candidates(await services.supervisor.directory(), chat.model, ModelKind.CHAT)
    model = models[0]
    record.model, record.stream = model.model_id, bool(chat.stream)
    require_kind(model, ModelKind.CHAT)
    identity = new_identity("chatcmpl", services, model)
    form = Form(
        generate.search.n,
        bool(chat.logprobs),
        chat.include_usage,
        chat.stop_texts,
        chat.continuous_usage,
        bool(chat.return_token_ids),
    )
    generate = own_request(generate, record)
    job = Job(
        services.live, services.jobs, services.spec.version, record, identity, form,
        ChatShape, RequestKind.CHAT, request.remote,
    )  # fmt: skip
    opening = first_opened(
        models, lambda chosen: services.dispatcher.generate(chosen, generate), job.choose
    )
    if chat.stream:
        return await answer_stream(request, opening, job)
    return await answer_whole(request, opening, job)
