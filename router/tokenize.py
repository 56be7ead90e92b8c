"""POST /tokenize and /detokenize, in the form that vLLM gave them."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web

from lmx.protocol.tasks import Detokenized, Task, Tokenized
from lmx.router.body import read_object
from lmx.router.json_answer import json_value
from lmx.router.routing import candidates
from lmx.router.schemas_tasks import (
    TOKENIZE,
    DetokenizeRequest,
    TokenizeRequest,
    parse_detokenize,
    parse_tokenize,
)
from lmx.router.services import SERVICES
from lmx.router.task_fallback import perform_on_first
from lmx.router.traffic import RECORD
from lmx.router.unsupported import log_ignored
from lmx.router.worker_task import TaskAnswer


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


async def _perform(request: web.Request, name: str | None, task: Task) -> TaskAnswer:
    services, record = request.app[SERVICES], request[RECORD]
    models = candidates(await services.supervisor.directory(), name, None)
    task = replace(task, request_id=record.request_id)
    return (await perform_on_first(services, record, models, task))[1]
