"""POST /v1/responses/compact: a conversation made shorter by a summary that its model writes."""

import orjson
from aiohttp import web

from lmx.router.http.bodies.json_body import checked_ahead, next_step, read_object
from lmx.router.http.outcome import CONTEXT, note_ignored
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.media import generation
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.named_files import with_files
from lmx.router.inference.prompts import prepared
from lmx.router.inference.responses.conversations import pieces_of
from lmx.router.inference.responses.creation import whole_conversation
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.responses.compaction import CompactedAnswer
from lmx.router.rendering.responses.items import RESPONSE
from lmx.router.rendering.responses.sealing import compaction_key, sealing_key
from lmx.router.schema.requests.responses.compaction import (
    CompactRequest,
    asks_for_summary,
    summarizing,
)
from lmx.router.schema.requests.responses.items import ITEMS, MessageItem
from lmx.router.schema.requests.responses.responses import (
    asked_of,
    generation_of,
    parse_responses,
)
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES


async def compact(request: web.Request) -> web.StreamResponse:
    """Return the user's messages of a conversation, and an item that stands for the rest of it."""
    services, owner = request.app[SERVICES], request[CONTEXT].owner
    body = await read_object(request, services.spec.body_limit_bytes)
    note_ignored(request, ignored_fields(body, CompactRequest, {}))
    body = await checked_ahead(request, body, "input", ITEMS)
    # Its fields mean what they do in a request for a response.
    wanted = parse_responses(
        {name: body[name] for name in CompactRequest.model_fields if name in body}
    )
    await next_step(request)
    key = sealing_key(services.spec.admin_key)
    items, own = await whole_conversation(request, wanted)
    asks_for_summary(own)
    await next_step(request)
    asked = asked_of(wanted, items, key, owner=owner, earlier=len(items) - len(own))
    note_ignored(request, asked.left_out)
    generate = prepared(request, generation_of(wanted, asked), "input.call_id")
    generate, media = await with_files(request, generate, asked.media)
    models = await models_of_kind(request, wanted.model, stream=False, media=media)
    contexts = [model.context_length for model in models]
    generate = summarizing(generate, contexts, thinks=wanted.reasoning is not None)
    await next_step(request)
    users = [item for item in items if isinstance(item, MessageItem) and item.role == "user"]
    messages = [orjson.Fragment(message) for _, message in await pieces_of(request, users)]
    form = CompactedAnswer(messages, compaction_key(key, owner))
    begin = generation(request, generate, media)
    del body, wanted, items, own, asked, users, media
    await next_step(request)
    return await answer(
        request, Plan(models, begin, form, RequestKind.CHAT, RESPONSE), stream=False
    )
