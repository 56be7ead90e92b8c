"""POST /v1/completions, as a stream and as one answer: texts that are gone on with."""

from __future__ import annotations

from aiohttp import web

from lmx.protocol.states import ModelKind
from lmx.router.http.access import own_request
from lmx.router.http.body import read_object
from lmx.router.http.request_record import RECORD
from lmx.router.inference.answering import answer_stream, answer_whole, is_ovms, new_identity
from lmx.router.jobs.job import Job
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.envelope import Form
from lmx.router.rendering.text import TextShape
from lmx.router.schema.requests.completions import CompletionRequest, parse_completion
from lmx.router.schema.requests.unsupported import COMPLETION, log_ignored
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import require_kind
from lmx.router.supervisor.routing import candidates
from lmx.router.workers.fallback import first_opened
from lmx.router.workers.prompt_group import generate_all


async def completions(request: web.Request) -> web.StreamResponse:
    """Go on with one text or several.

    All prompts are accepted before a stream begins: what is refused soon is refused with its
    own status.
    """
    services, record = request.app[SERVICES], request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted, generates = parse_completion(body, ovms=is_ovms(request))
    log_ignored(body, CompletionRequest, COMPLETION)
    models = candidates(await services.supervisor.directory(), wanted.model, ModelKind.CHAT)
    model = models[0]
    record.model, record.stream = model.model_id, bool(wanted.stream)
    require_kind(model, ModelKind.CHAT)
    identity = new_identity("cmpl", services, model)
    form = Form(
        choices=len(generates) * generates[0].search.n,
        logprobs=wanted.logprobs is not None,
        include_usage=wanted.include_usage,
        stop=wanted.stop_texts,
        continuous_usage=wanted.continuous_usage,
        token_ids=bool(wanted.return_token_ids),
    )
    named = [own_request(generate, record) for generate in generates]

    job = Job(
        services.live, services.jobs, services.spec.version, record, identity, form,
        TextShape, RequestKind.COMPLETION, request.remote,
    )  # fmt: skip
    opening = first_opened(
        models, lambda chosen: generate_all(services.dispatcher, chosen, named), job.choose
    )
    if wanted.stream:
        return await answer_stream(request, opening, job)
    return await answer_whole(request, opening, job)
