"""POST /v1/rerank: sorts documents by how well they answer a query."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NotRequired

from aiohttp import web

from lmx.protocol.states import ModelKind
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.outcome import note_ignored
from lmx.router.http.responses import Answer, json_value
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.tasks import compute, scores_of
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.envelope import Usage
from lmx.router.schema.requests.tasks import RERANK, RerankRequest, parse_rerank
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES


class RankedText(Answer):
    """The document, as it was sent."""

    text: str
    """Its text."""


class RankedDocument(Answer):
    """A document and how well it fits."""

    index: int
    """The document's place in the request, from 0."""
    document: NotRequired[RankedText | None]
    """The document, unless it was not wanted."""
    relevance_score: float
    """How well the document answers the query: more is better."""


class Ranking(Answer):
    """The documents, the best one first."""

    id: str
    model: str
    """The id of the model that answered."""
    usage: Usage
    """How many tokens it took."""
    results: list[RankedDocument]
    """The documents, the best one first."""


async def rerank(request: web.Request) -> web.Response:
    """Return the documents with their scores, the best first. The route has the paths of vLLM, Jina
    and Cohere."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    wanted, task = parse_rerank(body)
    await next_step(request)
    note_ignored(request, ignored_fields(body, RerankRequest, RERANK))
    models = await models_of_kind(request, wanted.model, ModelKind.RERANK)
    rerank_id = f"rerank-{secrets.token_hex(12)}"
    computed = await compute(request, models, task, RequestKind.RERANK, rerank_id)
    answer: Ranking = {
        "id": rerank_id,
        "model": computed.model_id,
        "usage": computed.usage,
        "results": _results(wanted, scores_of(computed)),
    }
    return json_value(answer)


def _results(wanted: RerankRequest, scores: Mapping[int, float]) -> list[RankedDocument]:
    # Documents with equal scores stay in the request's order.
    order = sorted(scores, key=lambda index: (-scores[index], index))[: wanted.top_n]
    texts = wanted.texts
    with_documents = wanted.return_documents is not False
    results: list[RankedDocument] = []
    for index in order:
        result: RankedDocument = {"index": index, "relevance_score": scores[index]}
        if with_documents:
            result["document"] = {"text": texts[index]}
        results.append(result)
    return results
