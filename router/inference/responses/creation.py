"""POST /v1/responses and /v1/responses/input_tokens: OpenAI's Responses API.

The routes of responses that are kept are in :mod:`lmx.router.inference.responses.stored`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson
from aiohttp import web

from lmx.protocol.errors import RequestError
from lmx.protocol.models.sampling import PARAMETERS
from lmx.router.http.bodies.json_body import checked_ahead, next_step, read_object
from lmx.router.http.outcome import CONTEXT, note_ignored
from lmx.router.http.responses import Answer, json_value
from lmx.router.inference.answering import Plan, answer
from lmx.router.inference.media import generation
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.named_files import with_files
from lmx.router.inference.prompts import prepared
from lmx.router.inference.responses.background import begin_answer, follow_events
from lmx.router.inference.responses.conversations import items_of, pieces_of
from lmx.router.inference.responses.stored import earlier_items, with_referenced
from lmx.router.inference.tasks import tokenized
from lmx.router.jobs.job import StoredInput
from lmx.router.jobs.live import RequestKind
from lmx.router.media.fair_semaphore import FairSemaphore
from lmx.router.rendering.responses.compaction import CompactionAnswer
from lmx.router.rendering.responses.events import ResponseAnswer
from lmx.router.rendering.responses.items import RESPONSE, ItemForm
from lmx.router.rendering.responses.preparation import PreparedAnswer
from lmx.router.rendering.responses.sealing import compaction_key, sealing_key
from lmx.router.rendering.responses.state import QUEUED
from lmx.router.schema.requests.responses.compaction import asks_for_summary, summarizing
from lmx.router.schema.requests.responses.items import (
    ITEMS,
    Item,
    ItemReference,
    check_together,
    stored_items,
)
from lmx.router.schema.requests.responses.responses import (
    InputTokensRequest,
    ResponsePromptFields,
    ResponsesRequest,
    asked_of,
    generation_of,
    json_of,
    parse_input_tokens,
    parse_responses,
    tokenizing_of,
)
from lmx.router.schema.requests.responses.tools import flat_tool
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.schema.validation import invalid
from lmx.router.services import SERVICES

_REPEATED: Final[Mapping[str, Any]] = {
    "background": False,
    "frequency_penalty": PARAMETERS["frequency_penalty"].default,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": PARAMETERS["presence_penalty"].default,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": PARAMETERS["temperature"].default,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": PARAMETERS["top_p"].default,
    "truncation": "disabled",
    "user": None,
}
"""The fields of a request that its response repeats, each with what it is where it was left out.
For the parameters of sampling these are lmx's own defaults: what a model has in their place only
its worker knows, but the Open Responses specification wants numbers."""

STORED_READS: Final = web.AppKey("stored_reads", FairSemaphore)
"""Turns in which requests read what they continue: that is as large as a body for each, however
small the request."""

MOST_STORED_READS: Final = 8
"""How many of them there are at a time."""

_STORED_AT_ONCE: Final = 2_000
"""How many items are written out in one step: some hundredths of a second of work for the
largest."""


class InputTokenCount(Answer):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


async def responses(request: web.Request) -> web.StreamResponse:
    """Answer a conversation.

    An early refusal has its own status, because it comes before a stream's headers are sent.
    """
    services = request.app[SERVICES]
    body = await read_object(request, services.spec.body_limit_bytes)
    body = await checked_ahead(request, body, "input", ITEMS)
    wanted = parse_responses(body)
    if wanted.conversation is not None and request[CONTEXT].background:
        raise invalid(
            "conversation",
            "is not for requests in a batch, which come in any order: send the items in `input`.",
        )
    await next_step(request)
    key, owner = sealing_key(services.spec.admin_key), request[CONTEXT].owner
    items, own = await whole_conversation(request, wanted)
    summarizes = asks_for_summary(own)
    if summarizes and wanted.generate is False:
        raise invalid("generate", "can't be false for a summary, which is output.")
    await next_step(request)
    asked = asked_of(wanted, items, key, owner=owner, earlier=len(items) - len(own))
    await next_step(request)
    note_ignored(request, [*ignored_fields(body, ResponsesRequest, {}), *asked.left_out])
    generate = prepared(request, generation_of(wanted, asked), "input.call_id")
    generate, media = await with_files(request, generate, asked.media)
    stream = wanted.streams
    models = await models_of_kind(request, wanted.model, stream=stream, media=media)
    repeated = _repeated(body, wanted)
    if summarizes:
        generate = summarizing(generate, [model.context_length for model in models], thinks=True)
        capped = wanted.max_output_tokens is None
        form: ResponseAnswer = CompactionAnswer(repeated, compaction_key(key, owner), capped=capped)
    else:
        token_key = key if wanted.seals_reasoning else None
        form = (PreparedAnswer if wanted.generate is False else ResponseAnswer)(
            repeated,
            ItemForm(asked.tools.called, wanted.summarizes, token_key),
            logprobs=wanted.logprobs is not None,
        )
    begin = generation(request, generate, media)
    del media
    stored = None
    if wanted.is_stored:
        named = wanted.conversation_id
        added = () if named is None else await pieces_of(request, own)
        stored = StoredInput(
            await _stored(request, own),
            wanted.previous_response_id,
            form.stored_output,
            named,
            added,
        )
    plan = Plan(models, begin, form, RequestKind.CHAT, RESPONSE, stored)
    if wanted.background:
        job = await begin_answer(request, plan, stream=stream)
        log = services.event_logs.get(job.live.id) if stream else None
        if log is not None:
            return await follow_events(request, log, 0)
        return json_value({**job.empty_answer(), "status": QUEUED})
    # Media may be megabytes of text, which nobody needs for as long as the answer takes.
    del body, wanted, items, own, asked
    await next_step(request)
    return await answer(request, plan, stream=stream)


async def input_tokens(request: web.Request) -> web.Response:
    """Return how many tokens the prompt of a response has, its images and sounds included."""
    spec = request.app[SERVICES].spec
    body = await read_object(request, spec.body_limit_bytes)
    body = await checked_ahead(request, body, "input", ITEMS)
    wanted = parse_input_tokens(body)
    await next_step(request)
    items, own = await whole_conversation(request, wanted)
    asked = asked_of(
        wanted,
        items,
        sealing_key(spec.admin_key),
        owner=request[CONTEXT].owner,
        earlier=len(items) - len(own),
    )
    await next_step(request)
    note_ignored(request, [*ignored_fields(body, InputTokensRequest, {}), *asked.left_out])
    task = tokenizing_of(wanted, asked)
    try:
        counted = await tokenized(request, wanted.model, task, asked.media, "input.call_id")
    except RequestError as error:
        if error.param == "messages":  # A worker's name for them.
            error.param = "input"
        raise
    return json_value({"object": "response.input_tokens", "input_tokens": len(counted.tokens)})


async def _stored(request: web.Request, items: Sequence[Item]) -> bytes:
    """Return items as they are stored, a JSON array."""
    pieces = []
    for begin in range(0, len(items), _STORED_AT_ONCE):
        await next_step(request)
        pieces.append(stored_items(items[begin : begin + _STORED_AT_ONCE])[1:-1])
    await next_step(request)
    stored = b"[" + b",".join(pieces) + b"]"
    del pieces
    await next_step(request)
    return stored


async def whole_conversation(
    request: web.Request, wanted: ResponsePromptFields
) -> tuple[Sequence[Item], Sequence[Item]]:
    """Return all items of a request's conversation, and its own: with the items that it refers to
    in the place of the references."""
    conversation, previous = wanted.conversation_id, wanted.previous_response_id
    refers = any(isinstance(item, ItemReference) for item in wanted.items)
    if conversation is None and previous is None and not refers:
        return wanted.items, wanted.items
    async with request.app[STORED_READS].hold(request[CONTEXT].requester):
        own = await with_referenced(request, wanted.items)
        if conversation is not None:
            earlier = await items_of(request, conversation)
        elif previous is not None:
            earlier = await earlier_items(request, previous)
        else:
            return own, own
    items = [*earlier, *own]
    check_together(items, wanted.earlier_field)
    return items, own


def _repeated(body: Mapping[str, Any], wanted: ResponsesRequest) -> dict[str, Any]:
    repeated: dict[str, Any] = {}
    for name, default in _REPEATED.items():
        value = body.get(name)
        repeated[name] = default if value is None else orjson.Fragment(json_of(value, name))
    repeated["tools"] = orjson.Fragment(json_of(_shown_tools(body), "tools"))
    if wanted.conversation_id is not None:
        repeated["conversation"] = {"id": wanted.conversation_id}
    repeated["service_tier"] = wanted.tier or "default"
    reasoning, text = wanted.reasoning, wanted.text
    summary = reasoning and (reasoning.summary or reasoning.generate_summary)
    repeated["reasoning"] = {
        "effort": reasoning.effort if reasoning else None,
        "summary": None if summary == "none" else summary,
    }
    shape: Any = {"type": "text"}
    if text and text.format:
        shape = orjson.Fragment(json_of(body["text"]["format"], "text.format"))
    repeated["text"] = {
        "format": shape,
        "verbosity": text.verbosity if text and text.verbosity else "medium",
    }
    return repeated


def _shown_tools(body: Mapping[str, Any]) -> list[Any]:
    """Return the tools as they were sent; functions in the form of this API, with all fields."""
    return [
        {"description": None, "parameters": None, "strict": None, **flat}
        if (flat := flat_tool(tool)).get("type") == "function"
        else flat
        for tool in body.get("tools") or ()
    ]
