"""POST /v1/score: how well texts fit each other, pair by pair, in the form that vLLM gave it."""

from __future__ import annotations

import math
import secrets
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import Final, Literal

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Vectors
from lmx.protocol.states import ModelKind
from lmx.router.event_loop import yield_to_loop
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.outcome import note_ignored
from lmx.router.http.responses import Answer, json_value
from lmx.router.inference.model_choice import models_for
from lmx.router.inference.tasks import Computed, compute, scores_of
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.envelope import Usage
from lmx.router.schema.requests.tasks import (
    SCORE,
    ScoreRequest,
    embedding_of,
    parse_score,
    reranking_of,
)
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES

_AT_ONCE: Final = 64
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
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    wanted = parse_score(body)
    await next_step(request)
    note_ignored(request, ignored_fields(body, ScoreRequest, SCORE))
    models = await models_for(request, wanted.model, ModelKind.RERANK)
    embeds = _embeds(models[0])
    kind = RequestKind.EMBEDDING if embeds else RequestKind.RERANK
    task = embedding_of(wanted) if embeds else reranking_of(wanted)
    score_id = f"score-{secrets.token_hex(12)}"
    try:
        computed = await compute(request, models, task, kind, score_id)
    except RequestError as error:
        error.param = _own_name(error.param, len(wanted.first))
        raise
    scores = await _cosines(computed, wanted) if embeds else _in_order(scores_of(computed))
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
    if model.kind is ModelKind.CHAT:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"The model {model.model_id!r} is a language model, which scores no texts: name a "
            "reranking model or an embedding model.",
            param="model",
        )
    return model.kind is ModelKind.EMBEDDING


def _own_name(param: str | None, firsts: int) -> str | None:
    """Return this route's name for the field in which a worker found a fault."""
    name, _, rest = (param or "").partition("[")
    index = rest.removesuffix("]")
    if name == "documents" and index.isdecimal():
        return f"text_2[{index}]"
    if name == "input" and index.isdecimal():
        place = int(index)
        return f"text_1[{place}]" if place < firsts else f"text_2[{place - firsts}]"
    return param


def _in_order(scores: Mapping[int, float]) -> list[float]:
    return [scores[index] for index in range(len(scores))]


async def _cosines(computed: Computed, wanted: ScoreRequest) -> list[float]:
    vectors: dict[int, Sequence[float]] = {}
    for part in computed.parts:
        assert isinstance(part, Vectors)
        vectors.update(_split(part))
    firsts = len(wanted.first)
    cosines: list[float] = []
    for place in range(len(wanted.second)):
        one, other = vectors[place if firsts > 1 else 0], vectors[firsts + place]
        length = math.hypot(*one) * math.hypot(*other)
        cosines.append(sum(map(mul, one, other)) / length if length else 0.0)
        if len(cosines) % _AT_ONCE == 0:
            await yield_to_loop()
    return cosines


def _split(part: Vectors) -> Iterator[tuple[int, Sequence[float]]]:
    width = part.dimensions
    for place, index in enumerate(part.indexes):
        yield index, struct.unpack_from(f"<{width}f", part.data, 4 * width * place)
