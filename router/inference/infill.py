"""POST /infill: llama.cpp's way to have a gap in a text filled."""

from aiohttp import web

from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.outcome import note_ignored
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.media import generation
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.infill import InfillForm
from lmx.router.schema.requests.infill import INFILL, InfillRequest, parse_infill
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES


async def infill(request: web.Request) -> web.StreamResponse:
    """Write what belongs between two texts."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    wanted, generate = parse_infill(body)
    await next_step(request)
    note_ignored(request, ignored_fields(body, InfillRequest, INFILL))
    stream = wanted.streams
    models = await models_of_kind(request, wanted.model, stream=stream, infill=generate.infill)
    await next_step(request)
    plan = Plan(
        models,
        generation(request, generate),
        InfillForm({model.model_id: model.context_length for model in models}),
        RequestKind.COMPLETION,
        "infill-",
    )
    return await answer(request, plan, stream=stream)
