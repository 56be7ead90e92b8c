"""POST /tokenize and /detokenize, and GET /tokenizer_info, in the form that vLLM gave them."""

from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from lmx.protocol.messages.tasks import (
    DescribeTokenizer,
    Detokenized,
    TokenizerDescribed,
)
from lmx.router.http.bodies.json_body import checked_ahead, next_step, read_object
from lmx.router.http.outcome import note_ignored
from lmx.router.http.responses import Answer, json_text, json_value
from lmx.router.inference.model_choice import models_for
from lmx.router.inference.tasks import ask_tokenizer, read_task, tokenized
from lmx.router.schema.requests.conversation.messages import MESSAGES
from lmx.router.schema.requests.tasks import (
    TOKENIZE,
    DetokenizeRequest,
    TokenizeRequest,
    TokenizerInfoQuery,
    parse_detokenize,
    parse_tokenize,
)
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.workers.dispatch import TOKENIZE_DEADLINE_S


class Tokens(Answer):
    """The tokens of a text."""

    count: int
    """How many tokens there are."""
    max_model_len: int
    """The tokens that the model's context may have."""
    tokens: Sequence[int]
    """The tokens."""
    token_strs: Sequence[str] | None
    """The tokens as texts, where they were wanted."""


class TokensText(Answer):
    """The text of tokens."""

    prompt: str
    """The text."""


async def tokenize(request: web.Request) -> web.Response:
    """Return the tokens of a text or of a conversation. Any kind of model has a tokenizer."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    body = await checked_ahead(request, body, "messages", MESSAGES)
    wanted, task, sources = parse_tokenize(body)
    await next_step(request)
    note_ignored(request, ignored_fields(body, TokenizeRequest, TOKENIZE))
    answer = await tokenized(request, wanted.model, task, sources, "messages.tool_call_id")
    names: Any = orjson.Fragment(answer.pieces_json) if answer.pieces_json else None
    return json_value(
        Tokens(
            count=len(answer.tokens),
            max_model_len=answer.context_tokens,
            tokens=answer.tokens,
            token_strs=names,
        )
    )


async def detokenize(request: web.Request) -> web.Response:
    """Return the text of tokens."""
    wanted, task = await read_task(request, parse_detokenize, DetokenizeRequest)
    await next_step(request)
    answer = await ask_tokenizer(request, await models_for(request, wanted.model), task)
    assert isinstance(answer, Detokenized)
    return json_value(TokensText(prompt=answer.text))


async def tokenizer_info(request: web.Request) -> web.Response:
    """Return what a model's tokenizer is configured with, its chat template included."""
    query = validated(TokenizerInfoQuery, dict(request.query))
    task = DescribeTokenizer(0, "", TOKENIZE_DEADLINE_S)
    await next_step(request)
    answer = await ask_tokenizer(request, await models_for(request, query.model), task)
    assert isinstance(answer, TokenizerDescribed)
    return json_text(answer.text.encode())
