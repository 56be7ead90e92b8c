"""POST /v1/chat/completions, as a stream and as one answer."""

from aiohttp import web

from lmx.router.http.bodies.json_body import checked_ahead, next_step, read_object
from lmx.router.http.endpoint import is_ovms
from lmx.router.http.outcome import note_ignored
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.media import generation
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.named_files import with_files
from lmx.router.inference.prompts import prepared
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.chat import ChatShape
from lmx.router.rendering.envelope import Form
from lmx.router.rendering.openai import OpenAiAnswer
from lmx.router.schema.requests.chat import ChatRequest, parse_chat
from lmx.router.schema.requests.conversation.messages import MESSAGES
from lmx.router.schema.requests.conversation.older_forms import has_functions, modernized
from lmx.router.schema.requests.unsupported import CHAT, ignored_fields
from lmx.router.services import SERVICES


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation.

    An early refusal has its own status, because it comes before a stream's headers are sent.
    """
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    ovms = is_ovms(request)
    shaped = await checked_ahead(request, body, "messages", MESSAGES, modernized)
    chat, generate, sources = parse_chat(shaped, ovms=ovms)
    names_a_function = generate.tool_use is not None and generate.tool_use.function is not None
    await next_step(request)
    note_ignored(request, ignored_fields(body, ChatRequest, CHAT))
    stream = chat.streams
    generate, media = await with_files(request, generate, sources)
    models = await models_of_kind(request, chat.model, stream=stream, media=media)
    form = Form(
        generate.search.n,
        bool(chat.logprobs),
        chat.include_usage,
        chat.stop_texts,
        chat.continuous_usage,
        bool(chat.return_token_ids),
        has_functions(body),
        chat.prompt_logprobs is not None,
        # /v3 is OVMS's, which follows OpenAI and vLLM here. kiapi's document of /v1 differs.
        calls_stop=ovms and names_a_function,
        tier=chat.tier,
    )
    generate = prepared(request, generate, "messages.tool_call_id")
    begin = generation(request, generate, media)
    # Media may be megabytes of text, which nobody needs for as long as the answer takes.
    del body, shaped, chat, sources, media
    await next_step(request)
    shape = OpenAiAnswer(form, ChatShape, stream=stream)
    plan = Plan(models, begin, shape, RequestKind.CHAT, "chatcmpl-")
    return await answer(request, plan, stream=stream)
