"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from aiohttp import web

from lmx.router.http.bodies.json_body import checked_ahead, next_step, read_object
from lmx.router.http.outcome import note_ignored
from lmx.router.http.responses import Answer, json_value
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.media import generation
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.named_files import with_files
from lmx.router.inference.prompts import prepared
from lmx.router.inference.tasks import tokenized
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.anthropic import MessageAnswer
from lmx.router.schema.requests.anthropic.conversation import TURNS
from lmx.router.schema.requests.anthropic.messages import (
    CountTokensRequest,
    MessagesRequest,
    parse_count,
    parse_messages,
)
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES


class TokenCount(Answer):
    """How many tokens a prompt has."""

    input_tokens: int
    """The tokens of the messages, the system prompt and the tools, as the model's template shows
    them."""


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation.

    An early refusal has its own status, because it comes before a stream's headers are sent.
    """
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    body = await checked_ahead(request, body, "messages", TURNS)
    wanted, generate, sources = parse_messages(body)
    await next_step(request)
    note_ignored(request, [*ignored_fields(body, MessagesRequest, {}), *wanted.left_out])
    stream = wanted.streams
    generate, media = await with_files(request, generate, sources)
    models = await models_of_kind(request, wanted.model, stream=stream, media=media)
    generate = prepared(request, generate, "messages.content.tool_use_id")
    begin = generation(request, generate, media)
    form = MessageAnswer(wanted.stop_texts, shows_thinking=wanted.shows_thinking)
    # Media may be megabytes of text, which nobody needs for as long as the answer takes.
    del body, wanted, sources, media
    await next_step(request)
    plan = Plan(models, begin, form, RequestKind.CHAT, "msg_")
    return await answer(request, plan, stream=stream)


async def count_tokens(request: web.Request) -> web.Response:
    """Return how many tokens the prompt of a conversation has, its images included."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    body = await checked_ahead(request, body, "messages", TURNS)
    wanted, task, sources = parse_count(body)
    await next_step(request)
    note_ignored(request, [*ignored_fields(body, CountTokensRequest, {}), *wanted.left_out])
    counted = await tokenized(request, wanted.model, task, sources, "messages.content.tool_use_id")
    return json_value(TokenCount(input_tokens=len(counted.tokens)))
