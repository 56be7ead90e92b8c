"""POST /v1/rerank: documents sorted by how well they answer a query."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from aiohttp import web

from lmx.protocol.messages.tasks import Scores, TaskFinished
from lmx.protocol.states import ModelKind
from lmx.router.http.body import read_object
from lmx.router.http.request_record import RECORD
from lmx.router.http.responses import json_value
from lmx.router.jobs.live import RequestKind
from lmx.router.schema.requests.tasks import RERANK, RerankRequest, parse_rerank
from lmx.router.schema.requests.unsupported import log_ignored
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import require_kind
from lmx.router.supervisor.routing import candidates
from lmx.router.workers.fallback import perform_on_first
from lmx.router.workers.task import TaskAnswer


async def rerank(request: web.Request) -> web.Response:
    """Return the documents with their scores, the best first. Served under the names that
    vLLM, Jina and Cohere have for it."""
    services, record = request.app[SERVICES], request[RECORD]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted, task = parse_rerank(body)
    log_ignored(body, RerankRequest, RERANK)
    models = candidates(await services.supervisor.directory(), wanted.model, ModelKind.RERANK)
    record.model = models[0].model_id
    require_kind(models[0], ModelKind.RERANK)
    task = replace(task, request_id=record.request_id)
    rerank_id = f"rerank-{secrets.token_hex(12)}"
    model, answer = await services.live.perform(
        rerank_id,
        RequestKind.RERANK,
        record,
        request.remote,
        perform_on_first(services.tasks, record, models, task),
    )
    assert isinstance(answer.last, TaskFinished)
    record.prompt_tokens = answer.last.prompt_tokens
    whole = {
        "id": rerank_id,
        "model": model.model_id,
        "usage": {
            "prompt_tokens": answer.last.prompt_tokens,
            "total_tokens": answer.last.prompt_tokens,
        },
        "results": _results(wanted, answer),
    }
    return json_value(whole)


def _results(wanted: RerankRequest, answer: TaskAnswer) -> list[dict[str, Any]]:
    scores: dict[int, float] = {}
    for part in answer.parts:
        assert isinstance(part, Scores)
        scores.update(zip(part.indexes, part.scores, strict=True))
    # Equal ones stay in the request's order.
    order = sorted(scores, key=lambda index: (-scores[index], index))[: wanted.top_n]
    texts = wanted.texts
    with_documents = wanted.return_documents is not False
    return [
        {
            "index": index,
            **({"document": {"text": texts[index]}} if with_documents else {}),
            "relevance_score": scores[index],
        }
        for index in order
    ]
