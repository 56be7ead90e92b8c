"""What the routes answer that generate nothing: embeddings, reranking, tokenizing."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer
from lmx.router.schema.answers.errors import Usage


class Embedding(Answer):
    """A vector: numbers, or with ``base64`` its 32-bit floats, little-endian, as text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer):
    """A vector for each input, in the inputs' order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class RankedText(Answer):
    """The document, as it was sent."""

    text: str


class RankedDocument(Answer):
    """``index`` is the document's place in the request; ``document`` is left out on request."""

    index: int
    document: RankedText | None = None
    relevance_score: float


class Ranking(Answer):
    """The documents, the best one first."""

    id: str
    model: str
    usage: Usage
    results: list[RankedDocument]


class PairScore(Answer):
    """The score of one pair: the higher, the better they fit."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(Answer):
    """A score for each pair, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: Usage


class Tokens(Answer):
    """The tokens of a text. ``max_model_len`` is the model's context; ``token_strs`` are there
    on request."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokensText(Answer):
    """The text of tokens."""

    prompt: str
