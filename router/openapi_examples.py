"""A request for each body, which a reader can send as it is: the default model answers it."""

from __future__ import annotations

from typing import Any, Final

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
"""By the name of the model that checks the body. What names another model has to be changed."""
