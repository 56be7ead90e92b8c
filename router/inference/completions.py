"""POST /v1/completions, as a stream and as one answer: texts that the model continues."""

from aiohttp import web

from lmx.router.http.access import own_request
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.endpoint import is_ovms
from lmx.router.http.outcome import CONTEXT, note_ignored
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.envelope import Form
from lmx.router.rendering.openai import OpenAiAnswer
from lmx.router.rendering.text import TextShape
from lmx.router.schema.requests.completions import CompletionRequest, parse_completion
from lmx.router.schema.requests.unsupported import COMPLETION, ignored_fields
from lmx.router.services import SERVICES
from lmx.router.workers.prompt_group import generate_all


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one text or several.

    All prompts are accepted before a stream begins: an early refusal has its own status.
    """
    services, context = request.app[SERVICES], request[CONTEXT]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted, generates = parse_completion(body, ovms=is_ovms(request))
    await next_step(request)
    note_ignored(request, ignored_fields(body, CompletionRequest, COMPLETION))
    stream = wanted.streams
    models = await models_of_kind(request, wanted.model, stream=stream, infill=generates[0].infill)
    form = Form(
        choices=len(generates) * generates[0].search.n,
        logprobs=wanted.logprobs is not None,
        include_usage=wanted.include_usage,
        stop=wanted.stop_texts,
        continuous_usage=wanted.continuous_usage,
        token_ids=bool(wanted.return_token_ids),
        prompt_logprobs=wanted.prompt_logprobs is not None,
        tier=wanted.tier,
    )
    named = [own_request(generate, context) for generate in generates]
    await next_step(request)
    plan = Plan(
        models,
        lambda chosen, waits: generate_all(services.dispatcher, chosen, named, waits),
        OpenAiAnswer(form, TextShape, stream=stream, prompts=len(generates)),
        RequestKind.COMPLETION,
        "cmpl-",
    )
    return await answer(request, plan, stream=stream)
