"""What the routes answer that generate nothing: embeddings, reranking, tokenizing."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer
from lmx.router.schema.answers.errors import Usage


class Embedding(Answer):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int
    """The input's place in the request, from 0."""
    embedding: list[float] | str
    """The vector: numbers, or with `base64` its 32-bit floats, little-endian, as text."""


class EmbeddingList(Answer):
    """A vector for each input, in the inputs' order."""

    object: Literal["list"]
    data: list[Embedding]
    """The vectors."""
    model: str
    """The id of the model that answered."""
    usage: Usage
    """How many tokens it took."""


class RankedText(Answer):
    """The document, as it was sent."""

    text: str
    """Its text."""


class RankedDocument(Answer):
    """A document and how well it fits."""

    index: int
    """The document's place in the request, from 0."""
    document: RankedText | None = None
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


class Tokens(Answer):
    """The tokens of a text."""

    count: int
    """How many tokens there are."""
    max_model_len: int
    """The tokens that the model's context may have."""
    tokens: list[int]
    """The tokens."""
    token_strs: list[str] | None
    """The tokens as texts, where they were wanted."""


class TokensText(Answer):
    """The text of tokens."""

    prompt: str
    """The text."""
