"""The parts of the API's description that belong to no field: its groups, headers and examples.

The meaning of a field is its docstring: that of a request in :mod:`lmx.router.schema.requests`,
that of an answer next to the code that builds it.
"""

from typing import Any, Final

API: Final = (
    "Language, embedding, reranking and transcription models on this machine, one process for "
    "each: OpenAI's API, and what kiapi, Kolosal, OpenVINO Model Server, vLLM, Jina and Cohere add "
    "to it.\n\n"
    "- A field that is left out, or null, has its default. One that is not known is ignored. A "
    "known one of a wrong type or out of range is a 400, whose `param` is the field's path.\n"
    '- An error is always `{"error": {message, type, param, code}}`, also within a stream, and '
    "its message says what to do next. With the header `anthropic-version` it has Anthropic's "
    "form.\n"
    "- A request may send its own `X-Request-Id`; every answer has one."
)

TAGS: Final[dict[str, str]] = {
    "Chat": "Conversations",
    "Messages": "Conversations, by Anthropic's API",
    "Ollama": "The routes of Ollama's API, over the same models",
    "Responses": "Conversations, by OpenAI's Responses API",
    "Completions": "Text completions",
    "Embeddings": "Texts as vectors",
    "Rerank": "Documents ranked by relevance",
    "Audio": "Speech as text, and text as speech",
    "Moderations": "Refused: lmx serves no classifiers of harm",
    "Tokens": "What a model's tokenizer makes of text",
    "Models": "What can be requested",
    "Batches": "Many requests in a file, answered while no other request needs the model",
    "Conversations": "Conversations that responses continue; each key sees its own",
    "Files": "Files that clients upload; each key sees its own",
    "Jobs": "Every generation has a record, which outlives its connection",
    "Engines": "Kolosal's names for models, for operators",
    "Administration": "For operators",
    "Peers": "Other machines that answer for this one, and their pairing",
    "Keys": "Who may use lmx, and how much",
    "Downloads": "Models that are fetched from the hub",
    "Operation": "What lmx does now, for operators",
    "Health": "Whether lmx can serve",
    "Metrics": "What lmx has done, and how fast",
    "Description": "This document, and a page to read it with",
}

HEADERS: Final[dict[str, tuple[str, str]]] = {
    "X-Request-Id": ("string", "The request's id, its own or a new one; the log has it too"),
    "X-Lmx-Ignored": ("string", "What the request had and what changes nothing, by name"),
    "X-Job-Id": ("string", "The record of this generation: GET /v1/jobs/{id}"),
    "Retry-After": ("integer", "After how many seconds it is worth trying again"),
}


_WEATHER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}

_ASKS_FOR_WEATHER: Final = "What is the weather in Vienna?"

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "ChatRequest": {
        "messages": [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "max_completion_tokens": 50,
    },
    "CompletionRequest": {"prompt": "Once upon a time", "max_tokens": 50},
    "CountTokensRequest": {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "DownloadRequest": {"repo_id": "mlx-community/Qwen3-0.6B-4bit"},
    "BatchRequest": {
        "input_file_id": "file-0123456789abcdef01234567",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "MessageBatchRequest": {
        "requests": [
            {
                "custom_id": "first",
                "params": {
                    "model": "MODEL",
                    "max_tokens": 100,
                    "messages": [{"role": "user", "content": "Say hello."}],
                },
            }
        ]
    },
    "CompactRequest": {
        "input": [
            {"role": "user", "content": "Find the largest of 3, 9 and 4."},
            {"role": "assistant", "content": "It is 9."},
        ]
    },
    "ConversationItemsRequest": {"items": [{"role": "user", "content": "Say hello."}]},
    "ConversationRequest": {"items": [{"role": "system", "content": "Be brief."}]},
    "ConversationUpdate": {"metadata": {"topic": "demo"}},
    "EmbeddingRequest": {"model": "embeddings", "input": ["first text", "second text"]},
    "EngineRequest": {"engine_id": "small", "model_path": "mlx-community/Qwen3-0.6B-4bit"},
    "InputTokensRequest": {"input": "Hello"},
    "KeyRequest": {"name": "laptop", "models": ["qwen3-*"], "tokens_per_day": 1_000_000},
    "LoadRequest": {"model_id": "small"},
    "MarkdownRequest": {"blocks": ["# Title", "A **word**, and `code`."]},
    "ModelRequest": {"model": "small"},
    "DrainRequest": {"drained": True},
    "PinRequest": {"model": "small", "pinned": True},
    "RankRequest": {
        "group": "5f2c9e10",
        "model": "qwen3-32b",
        "rank": 1,
        "count": 2,
        "parallel": "auto",
        "meeting": {
            "endpoint": "tcp://192.168.1.20:50123",
            "server_key": "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
            "address": "192.168.1.21",
        },
        "digest": "0" * 64,
        "versions": {"lmx": "0.1.0", "mlx": "0.32.0", "mlx-lm": "0.32.0"},
        "reserve_bytes": 20_000_000_000,
        "memory_limit_bytes": 19_000_000_000,
        "prefix_cache_bytes": 2_000_000_000,
        "max_decode_stall_s": 1.0,
        "beat_interval_s": 1.0,
        "silence_s": 15.0,
    },
    "MessagesRequest": {
        "model": "auto",
        "max_tokens": 50,
        "system": "You are brief.",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    "OllamaChatRequest": {
        "model": "auto",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "options": {"num_predict": 50},
    },
    "OllamaEmbedRequest": {"model": "embeddings", "input": ["first text", "second text"]},
    "OllamaEmbeddingsRequest": {"model": "embeddings", "prompt": "a text"},
    "InfillRequest": {
        "input_prefix": "def double(n):\n    return ",
        "input_suffix": "\n\nprint(double(2))\n",
        "n_predict": 32,
    },
    "OllamaGenerateRequest": {"model": "auto", "prompt": "Why is the sky blue?"},
    "OllamaPullRequest": {"model": "auto"},
    "OllamaShowRequest": {"model": "auto"},
    "RerankRequest": {
        "model": "reranker",
        "query": "How tall is the Eiffel Tower?",
        "documents": ["It is 330 m tall.", "It is in Paris."],
        "top_n": 1,
    },
    "ResponsesRequest": {
        "instructions": "You are brief.",
        "input": "What is the capital of France?",
        "max_output_tokens": 50,
    },
    "PairHelloRequest": {"public": "A" * 43 + "=", "nonce": "A" * 22 + "=="},
    "PairProofRequest": {
        "exchange_id": "00ff",
        "proof": "A" * 43 + "=",
        "sealed": "A" * 120,
    },
    "RotateRequest": {"grace_s": 3600},
    "ScoreRequest": {
        "model": "reranker",
        "text_1": "How tall is the Eiffel Tower?",
        "text_2": ["It is 330 m tall.", "It is in Paris."],
    },
    "SpeechRequest": {"input": "It is a fine day.", "voice": "alloy", "response_format": "mp3"},
    "TokenizeRequest": {"prompt": "How many tokens?"},
    "UnloadRequest": {"model_id": "small"},
}
"""A request for each body, by the name of the model that checks it. A reader can send it as it is:
the default model answers it, within seconds. What names another model has to be changed."""

_RED_SQUARE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAMAAACdt4HsAAAABlBMVEUAAAD/AAAb/40iAA"
    "AAJklEQVR42u3MAQ0AAAgDoNu/tAmcAQ4BSAAO8xAIBAKBQNAXALUWkiAEAZFuWjMAAAAASUVORK5CYII="
)


def _chat_about(text: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, *parts]
    return {"messages": [{"role": "user", "content": content}], **fields}


FURTHER_EXAMPLES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "ChatRequest": {
        "a stream": {
            "messages": [{"role": "user", "content": "Tell me a short story."}],
            "max_completion_tokens": 100,
            "stream": True,
        },
        "a tool": {
            "messages": [{"role": "user", "content": _ASKS_FOR_WEATHER}],
            "tools": [
                {"type": "function", "function": {"name": "weather", "parameters": _WEATHER}}
            ],
        },
        "an image": _chat_about(
            "What is in the image?",
            {"type": "image_url", "image_url": {"url": _RED_SQUARE, "detail": "auto"}},
        ),
        "two images by URL": _chat_about(
            "What differs?",
            {"type": "image_url", "image_url": {"url": "https://example.com/before.jpg"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/after.jpg"}},
        ),
        "a sound": _chat_about(
            "What is said?",
            {"type": "input_audio", "input_audio": {"data": "(base64)", "format": "wav"}},
        ),
        "a video": _chat_about(
            "What happens?",
            {"type": "video_url", "video_url": {"url": "https://example.com/clip.mp4"}},
            fps=1.0,
            use_audio_in_video=True,
        ),
    },
    "ResponsesRequest": {
        "a tool": {
            "input": _ASKS_FOR_WEATHER,
            "tools": [{"type": "function", "name": "weather", "parameters": _WEATHER}],
        }
    },
    "MessagesRequest": {
        "a tool": {
            "model": "auto",
            "max_tokens": 200,
            "messages": [{"role": "user", "content": _ASKS_FOR_WEATHER}],
            "tools": [{"name": "weather", "input_schema": _WEATHER}],
        },
        "an image": {
            "model": "auto",
            "max_tokens": 200,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": _RED_SQUARE.partition(",")[2],
                            },
                        },
                        {"type": "text", "text": "What is in the image?"},
                    ],
                }
            ],
        },
    },
}
"""More requests for some bodies, by what they show. Those with media are for models that take
them."""
