"""What the description of the API says that stands on no field: its groups, headers and examples,
and what the fields of answers mean.

What a field of a request means is its docstring (:mod:`lmx.router.schema.requests`).
"""

from __future__ import annotations

from typing import Any, Final

_ANSWERS: Final[dict[str, str]] = {
    "acceptance_rate": "What share of the guesses was right",
    "accepted_tokens": "So many of the guesses were right",
    "bytes": "The token's bytes in UTF-8; a token may be a part of a character",
    "cached_tokens": "Tokens of the prompt that were not computed again",
    "choices": "The answers; none in a stream's chunk with the usage",
    "code": "What went wrong, for programs",
    "completion_tokens": "Tokens of the answers, reasoning included",
    "count": "How many tokens",
    "created": "Seconds since 1970",
    "decode_s": "From the first token to the last",
    "document": "The document, unless it was not wanted",
    "drafted_tokens": "Tokens that were guessed ahead",
    "embedding": "The vector: numbers, or its 32-bit floats in base64",
    "finish_reason": "Why the answer ended; null before its end",
    "first_token_s": "From the request's arrival to the first token",
    "index": "Its place among its like, from 0",
    "load_s": "How long the model was waited for",
    "logprob": "Natural logarithm of the probability; -9999 for impossible",
    "max_model_len": "Tokens that the model's context may have",
    "message": "What to do next, for people",
    "param": "The path of the field at fault",
    "prefill_s": "How long the prompt took",
    "prompt_tokens": "Tokens of the prompt",
    "queue_s": "How long the request waited for its turn in the worker",
    "reasoning_content": "What the model thought before",
    "reasoning_tokens": "Tokens of the answers that are reasoning",
    "refusal": "Always null",
    "relevance_score": "How well the document answers the query: more is better",
    "stop_reason": "The stop string, or the stop token, that ended the answer",
    "system_fingerprint": "Changes with lmx's version and the model's source",
    "text_offset": "Where each token begins, in characters",
    "token_strs": "The tokens as texts, where they were wanted",
    "tokens_per_s": "Tokens a second after the first one",
    "total_s": "From the request's arrival to the answer's end",
    "total_tokens": "All tokens",
}


def meaning_in_answer(field: str) -> str | None:
    """Return what a field of an answer means, None where its name or its object says it."""
    return _ANSWERS.get(field)


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


_WEATHER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "ChatRequest": {
        "messages": [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "What is the weather in Vienna?"},
        ],
        "max_completion_tokens": 200,
        "temperature": 0.7,
        "tools": [
            {"type": "function", "function": {"name": "weather", "parameters": _WEATHER}},
        ],
    },
    "CompletionRequest": {"prompt": "Once upon a time", "max_tokens": 50},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "DownloadRequest": {"repo_id": "mlx-community/Qwen3-0.6B-4bit"},
    "EmbeddingRequest": {"model": "embeddings", "input": ["first text", "second text"]},
    "EngineRequest": {"engine_id": "small", "model_path": "mlx-community/Qwen3-0.6B-4bit"},
    "LoadRequest": {"model_id": "small"},
    "RerankRequest": {
        "model": "reranker",
        "query": "How tall is the Eiffel Tower?",
        "documents": ["It is 330 m tall.", "It is in Paris."],
        "top_n": 1,
    },
    "ScoreRequest": {
        "model": "reranker",
        "text_1": "How tall is the Eiffel Tower?",
        "text_2": ["It is 330 m tall.", "It is in Paris."],
    },
    "TokenizeRequest": {"prompt": "How many tokens?"},
    "UnloadRequest": {"model_id": "small"},
}
"""A request for each body, by the name of the model that checks it. A reader can send it as it is:
the default model answers it. What names another model has to be changed."""
