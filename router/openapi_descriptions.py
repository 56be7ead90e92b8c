"""What the groups and headers of the API mean."""

from __future__ import annotations

from typing import Final

API: Final = (
    "Language, embedding and reranking models on this machine, one process for each: OpenAI's "
    "API, and what kiapi, Kolosal, OpenVINO Model Server, vLLM, Jina and Cohere add to it.\n\n"
    "- A field that is left out, or null, has its default. One that is not known is ignored. A "
    "known one of a wrong type or out of range is a 400, whose `param` is the field's path.\n"
    '- An error is always `{"error": {message, type, param, code}}`, also within a stream, and '
    "its message says what to do next.\n"
    "- A request may send its own `X-Request-Id`; every answer has one."
)

TAGS: Final[dict[str, str]] = {
    "Chat": "Conversations",
    "Completions": "Texts that are gone on with",
    "Embeddings": "Texts as vectors",
    "Rerank": "Documents in the order of how well they answer",
    "Tokens": "What a model's tokenizer makes of text",
    "Models": "What can be asked for",
    "Jobs": "Every generation has a record, which outlives its connection",
    "Engines": "Kolosal's names for models, for operators",
    "Administration": "For operators",
    "Downloads": "Models that are fetched from the hub",
    "Operation": "What lmx does now, for operators",
    "Health": "Whether lmx can serve",
    "Metrics": "What lmx has done, and how fast",
    "Description": "This document, and a page to read it with",
}

HEADERS: Final[dict[str, tuple[str, str]]] = {
    "X-Request-Id": ("string", "The request's id, its own or a new one; the log has it too"),
    "X-Job-Id": ("string", "The record of this generation: GET /v1/jobs/{id}"),
    "Retry-After": ("integer", "After so many seconds it is worth trying again"),
}
