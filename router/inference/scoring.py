"""POST /v1/score and /v1/rerank: how well texts fit each other, and documents a query, in the forms
of vLLM, Jina and Cohere."""

import math
import secrets
import time
from collections.abc import Mapping
from operator import mul
from typing import Final, Literal, NotRequired

from aiohttp import web

from lmx.protocol.errors import RequestError
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Vectors
from lmx.protocol.states import ModelKind
from lmx.router.event_loop import yield_to_loop
from lmx.router.http.responses import Answer, json_value
from lmx.router.inference.model_choice import models_for, models_of_kind
from lmx.router.inference.tasks import (
    Computed,
    compute,
    floats_of,
    read_task,
    scores_of,
    vectors_of,
)
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.envelope import Usage
from lmx.router.schema.requests.tasks import (
    RERANK,
    SCORE,
    RerankRequest,
    ScoreRequest,
    embedding_of,
    parse_rerank,
    parse_score,
    reranking_of,
)
from lmx.router.supervisor.directory import require_kind

_AT_ONCE: Final = 16
"""How many pairs of vectors are compared before other requests get their turn on the loop:
milliseconds of work."""


class PairScore(Answer):
    """The score of one pair."""

    index: int
    """The pair's place in the request, from 0."""
    object: Literal["score"]
    score: float
    """How well the two fit: more is better."""


class ScoreList(Answer):
    """A score for each pair, in their order."""

    id: str
    object: Literal["list"]
    created: int
    """Seconds since 1970."""
    model: str
    """The id of the model that answered."""
    data: list[PairScore]
    """The scores."""
    usage: Usage
    """How many tokens it took."""


async def score(request: web.Request) -> web.Response:
    """Return a score for each pair: from a reranking model, or the cosine of an embedding model's
    vectors. One text is paired with each of several, or each of several with one of as many
    others."""
    wanted = await read_task(request, parse_score, ScoreRequest, SCORE)
    models = await models_for(request, wanted.model)
    embeds = _embeds(models[0])
    kind = RequestKind.EMBEDDING if embeds else RequestKind.RERANK
    task = embedding_of(wanted) if embeds else reranking_of(wanted)
    score_id = f"score-{secrets.token_hex(12)}"
    try:
        computed = await compute(request, models, task, kind, score_id)
    except RequestError as error:
        if error.param is not None:
            own = _own_name(error.param, len(wanted.first))
            error.message = error.message.replace(f"`{error.param}`", f"`{own}`")
            error.param = own
        raise
    scores = await _cosines(computed, wanted) if embeds else [*scores_of(computed).values()]
    answer: ScoreList = {
        "id": score_id,
        "object": "list",
        "created": int(time.time()),
        "model": computed.model_id,
        "data": [
            {"index": index, "object": "score", "score": value}
            for index, value in enumerate(scores)
        ],
        "usage": computed.usage,
    }
    return json_value(answer)


def _embeds(model: ModelView) -> bool:
    if model.kind is ModelKind.EMBEDDING:
        return True
    try:
        require_kind(model, ModelKind.RERANK)
    except RequestError as error:
        error.message += " A reranking model scores texts, and so does an embedding model."
        raise
    return False


def _own_name(param: str, firsts: int) -> str:
    """Return this route's name for the field in which a worker found a fault."""
    if param == "query":
        return "text_1"
    name, _, rest = param.partition("[")
    index = rest.removesuffix("]")
    if name == "documents" and index.isdecimal():
        return f"text_2[{index}]"
    if name == "input" and index.isdecimal():
        place = int(index)
        return f"text_1[{place}]" if place < firsts else f"text_2[{place - firsts}]"
    return param


async def _cosines(computed: Computed, wanted: ScoreRequest) -> list[float]:
    vectors: dict[int, bytes] = {}
    for part in computed.parts:
        assert isinstance(part, Vectors)
        vectors.update(vectors_of(part))
    firsts = len(wanted.first)
    cosines: list[float] = []
    for place in range(len(wanted.second)):
        # All of them as numbers would take hundreds of megabytes.
        one = floats_of(vectors[place if firsts > 1 else 0])
        other = floats_of(vectors[firsts + place])
        length = math.hypot(*one) * math.hypot(*other)
        cosines.append(sum(map(mul, one, other)) / length if length else 0.0)
        if len(cosines) % _AT_ONCE == 0:
            await yield_to_loop()
    return cosines


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
    wanted, task = await read_task(request, parse_rerank, RerankRequest, RERANK)
    models = await models_of_kind(request, wanted.model)
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
