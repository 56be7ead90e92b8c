"""POST /tokenize and /detokenize, and GET /tokenizer_info, in the form that vLLM gave them."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web

from lmx.protocol.messages.tasks import (
    DescribeTokenizer,
    Detokenized,
    Task,
    Tokenized,
    TokenizerDescribed,
)
from lmx.router.http.body import read_object
from lmx.router.http.request_record import RECORD
from lmx.router.http.responses import json_text, json_value
from lmx.router.schema.requests.tasks import (
    TOKENIZE,
    DetokenizeRequest,
    TokenizeRequest,
    TokenizerInfoQuery,
    parse_detokenize,
    parse_tokenize,
)
from lmx.router.schema.requests.unsupported import log_ignored
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.routing import candidates
from lmx.router.workers.dispatch import TOKENIZE_DEADLINE_S
from lmx.router.workers.fallback import perform_on_first
from lmx.router.workers.task import TaskAnswer


async def tokenize(request: web.Request) -> web.Response:
    """Return the tokens of a text or of a conversation. Any kind of model has a tokenizer."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    wanted, task = parse_tokenize(body)
    log_ignored(body, TokenizeRequest, TOKENIZE)
    answer = await _perform(request, wanted.model, task)
    assert isinstance(answer.last, Tokenized)
    return json_value(
        {
            "count": len(answer.last.tokens),
            "max_model_len": answer.last.context_tokens,
            "tokens": answer.last.tokens,
            "token_strs": answer.last.pieces if wanted.return_token_strs else None,
        }
    )


async def detokenize(request: web.Request) -> web.Response:
    """Return the text of tokens."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    wanted, task = parse_detokenize(body)
    log_ignored(body, DetokenizeRequest, {})
    answer = await _perform(request, wanted.model, task)
    assert isinstance(answer.last, Detokenized)
    return json_value({"prompt": answer.last.text})


async def tokenizer_info(request: web.Request) -> web.Response:
    """Return what a model's tokenizer is configured with, its chat template included."""
    query = validated(TokenizerInfoQuery, dict(request.query))
    answer = await _perform(request, query.model, DescribeTokenizer(0, "", TOKENIZE_DEADLINE_S))
    assert isinstance(answer.last, TokenizerDescribed)
    return json_text(answer.last.text.encode())


async def _perform(request: web.Request, name: str | None, task: Task) -> TaskAnswer:
    services, record = request.app[SERVICES], request[RECORD]
    models = candidates(await services.supervisor.directory(), name, None)
    task = replace(task, request_id=record.request_id)
    return (await perform_on_first(services.tasks, record, models, task))[1]
