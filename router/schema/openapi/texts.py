"""What the fields of requests mean, in the words of docs/parameters.md, and those of answers.

What the groups and headers of the API mean.

A request for each body, which a reader can send as it is: the default model answers it.
"""

from __future__ import annotations

from typing import Any, Final

_FIELDS: Final[dict[str, str]] = {
    # Which model, how much, and how it comes.
    "model": "Id, alias or source of a model. Default: the configured one",
    "max_completion_tokens": "Limit of an answer, reasoning included. Default: the model's, else "
    "up to the context. Capped to the model's limit",
    "max_tokens": "Older name of `max_completion_tokens`; both, different, are a 400",
    "min_tokens": "Neither the end token nor a stop ends the answer before. Default: 0",
    "stop": "Strings that end the answer: one, or up to 4. They are not in it",
    "include_stop_str_in_output": "The stop string stays in the answer. Default: false; on /v3 "
    "true in streams, where false is a 400",
    "stop_token_ids": "Tokens that end the answer, and are not in it",
    "ignore_eos": "The model's end tokens don't end the answer. Default: false",
    "stream": "Send the answer as it comes, as server-sent events. Default: false",
    "stream_options": "Allowed with `stream: true` only",
    "include_usage": "A last chunk with the usage. Default: false",
    "continuous_usage_stats": "Every chunk has the usage so far. Needs `include_usage`",
    "keep_alive": "For how long the model stays loaded after this request when no other comes: "
    'seconds, or a duration such as "5m" or "1h30m"; 0: not at all; negative or "forever": for '
    "ever",
    "ttl": "The same as `keep_alive`, in whole seconds: LM Studio's name",
    "return_token_ids": "The tokens of prompt and answer are told too. Default: false",
    "cache_salt": "Only requests with the same one share cached prefixes",
    "user": "Accepted, changes nothing",
    "metadata": "Accepted, changes nothing",
    "fps": "Frames a second that are taken from a video. Only for models that take video",
    "use_audio_in_video": "A video's sound is heard too. Only for models that take video",
    "safety_identifier": "Accepted, changes nothing",
    "service_tier": "Accepted, changes nothing",
    "prompt_cache_key": "Accepted, changes nothing: prefixes are found by themselves",
    "prompt_cache_retention": "Accepted, changes nothing: prefixes are kept while there is room",
    # Sampling.
    "temperature": "0 is greedy. Default: the model's, else 0.7",
    "top_p": "The likeliest tokens that make up this share. Default: the model's, else 1",
    "top_k": "So many of the likeliest tokens; 0 and -1: all. Default: the model's, else all",
    "min_p": "At least this share of the likeliest token's probability. Default: the model's, "
    "else 0",
    "typical_p": "Tokens of typical information that make up this share. Default: the model's, "
    "else 1",
    "seed": "Same seed, same tokens, whatever else runs. Default: random",
    "repetition_penalty": "Divides what was said, in prompt or answer. Default: the model's, "
    "else 1",
    "presence_penalty": "Taken off a token that the answer has. Default: 0",
    "frequency_penalty": "Taken off a token for each time that the answer has it. Default: 0",
    "logit_bias": "Added to tokens: token ids, as strings, to -100 ... 100",
    # Several answers.
    "n": "Answers that are returned. Default: 1",
    "best_of": "Answers that are made, of which the `n` best are returned. On /v3 the width of a "
    "beam search. Default: `n`",
    "use_beam_search": "Find the answers by beam search. Default: false",
    "length_penalty": "Scores of beams are divided by the length to this power; an error without "
    "beams. Default: 1",
    # The form of the answer.
    "response_format": "Text, JSON, or JSON that a schema describes, which is enforced",
    "structured_outputs": "One of several forms, which is enforced: vLLM's way",
    "guided_json": "Older name of `structured_outputs.json`",
    "guided_regex": "Older name of `structured_outputs.regex`",
    "guided_choice": "Older name of `structured_outputs.choice`",
    "guided_grammar": "Older name of `structured_outputs.grammar`",
    "guided_whitespace_pattern": "Older name of `structured_outputs.whitespace_pattern`",
    "whitespace_pattern": "A regular expression for each stretch of white space in the JSON",
    "json_schema": "A JSON schema (at the top: or its text; llama.cpp's name). In "
    "`response_format`: OpenAI's wrapping of one",
    "json": "A JSON schema, or its text",
    "json_object": "Any JSON object",
    "regex": "A regular expression that the whole answer matches",
    "choice": "The answer is one of these",
    "grammar": "A grammar that the answer follows: Lark or GBNF",
    "schema": "A JSON schema. What no grammar enforces of it is checked when the answer is whole",
    "strict": "Accepted: a schema is always enforced",
    # Tools and reasoning.
    "tools": "Functions that the model may call",
    "tool_choice": "Whether it must: `required` (or `any`) and a function are enforced by a "
    "grammar. Default: `auto`",
    "parallel_tool_calls": "More than one call in an answer. Default: true",
    "reasoning_effort": "Given to the model's template; `none` also switches thinking off",
    "enable_thinking": "Whether the model thinks. Default: the model's",
    "thinking_token_budget": "The thinking ends when it is so many tokens long",
    "thinking_budget": "Qwen's name of `thinking_token_budget`",
    "chat_template_kwargs": "Given to the model's chat template",
    "function": "The function",
    "parameters": "A JSON schema of the arguments. Default: none are taken",
    "arguments": "JSON text",
    # Speculation.
    "num_assistant_tokens": "Tokens that are guessed at a time. Not together with "
    "`assistant_confidence_threshold`",
    "assistant_confidence_threshold": "A draft model stops guessing when less sure than this",
    "max_ngram_size": "Prompt lookup: the longest run of tokens that is looked for",
    # Messages.
    "messages": "The conversation",
    "role": "Who speaks. `developer` is a later word for `system`",
    "content": "A text, or parts of one. Optional for the role `assistant` alone",
    "text": "A text",
    "tool_call_id": "Of which call this is the result. Needed with the role `tool`",
    "tool_calls": "The calls that the assistant made",
    "reasoning_content": "What the assistant thought",
    # Completions, embeddings, reranking, tokens.
    "prompt": "A text, or an array of texts, of tokens, or of arrays of tokens",
    "echo": "The answer begins with the prompt. Default: false",
    "logprobs": "Each token of the content with its logprob. Default: false",
    "top_logprobs": "So many alternatives with each token. Needs `logprobs`",
    "input": "A text, or an array of texts, of tokens, or of arrays of tokens",
    "encoding_format": "Numbers, or 32-bit floats in base64. Default: float",
    "dimensions": "So many of a vector's first numbers, scaled to length 1. Default: all",
    "query": "What the documents are to answer",
    "documents": "Texts, or objects with a `text`",
    "text_1": "The first text of each pair: one for all, or as many as there are second ones",
    "text_2": "The second texts of the pairs: one or several",
    "top_n": "So many of the best. Default: all",
    "return_documents": "The answer repeats the texts. Default: true",
    "add_special_tokens": "Tokens that begin or end a text for this model. Default: true",
    "add_generation_prompt": "The conversation ends with the start of an answer. Default: true",
    "return_token_strs": "The tokens as texts too. Default: false",
    "tokens": "Token ids",
    # Operators.
    "model_id": "Id, alias or source of a model",
    "max_context_length": "Tokens that its context may have. Default: as configured",
    "gpu_layers": "Accepted, changes nothing: memory is unified",
    "n_gpu_layers": "Accepted and repeated, changes nothing: memory is unified",
    "main_gpu_id": "Accepted and repeated, changes nothing: there is one GPU",
    "n_ctx": "Tokens that the engine's context may have",
    "engine_id": "The engine's id, which requests name as their model",
    "model_path": "An MLX folder, a GGUF file, or a repository of the hub",
    "repo_id": "A repository of the hub: OWNER/NAME",
    "filename": "One file of it. Default: all that the model needs",
    "revision": "A branch, a tag or a commit. Default: main",
    "follow": "Go on with what comes, until the client leaves. Default: true",
    "force": "Also when it is loaded: it is unloaded first. Default: false",
}

_OWN: Final[dict[tuple[str, str], str]] = {
    ("JobsQuery", "state"): "Only jobs in this state",
    ("JobsQuery", "model"): "Only jobs of this model: its id, alias or source",
    ("JobsQuery", "kind"): "Only jobs of this kind",
    ("JobsQuery", "limit"): "So many at most, the newest first",
    ("JobsQuery", "after"): "The id of the last job of the page before",
    ("EventsQuery", "model"): "Only events of this model: its id or alias",
    ("EventsQuery", "name"): "Only events of this name, and those below it: `worker` has "
    "`worker.ready`",
    ("EventsQuery", "last"): "So many that there are come first",
    ("LogsQuery", "lines"): "So many lines that there are come first",
    ("CompletionRequest", "logprobs"): "Tokens with so many alternatives, in lists",
    ("CompletionRequest", "max_tokens"): "Limit of an answer. Default: 16",
    ("CompletionRequest", "max_completion_tokens"): "The same as `max_tokens`",
    ("TokenizeRequest", "prompt"): "A text; this or `messages`",
    ("TokenizeRequest", "messages"): "A conversation; this or `prompt`",
    ("Message", "name"): "Who speaks, among several in one role; given to the template",
    ("TextPart", "type"): "Text is the only kind of part",
    ("ToolCall", "id"): "The call's id, which its result names",
    ("ToolCall", "type"): "Functions are the only kind of tool",
    ("FunctionCall", "name"): "The function that was called",
    ("JsonSchemaFormat", "name"): "Accepted: for the client's own use",
    ("JsonSchemaFormat", "description"): "Accepted: for the client's own use",
    ("NamedFunction", "name"): "The function that must be called: one of the `tools`",
    ("NamedTool", "type"): "Functions are the only kind of tool",
    ("AllowedChoice", "type"): "The choice of some of the tools",
    ("AllowedChoice", "allowed_tools"): "Which, and whether one must be called",
    ("AllowedTools", "mode"): "`auto`: they may be called; `required`: one of them must",
    ("AllowedTools", "tools"): "Their names",
    ("Tool", "type"): "Functions are the only kind of tool",
    ("ResponseFormat", "type"): "What form",
    ("Function", "name"): "1 to 64 letters, digits, `_`, `.`, `-`; each name once",
    ("Function", "description"): "What the function does, for the model",
}


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


def meaning_in_request(schema: str, field: str) -> str | None:
    """Return what a field of a request means, None where it is not listed. The same name means
    the same in all requests, but for a few."""
    return _OWN.get((schema, field)) or _FIELDS.get(field)


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
"""By the name of the model that checks the body. What names another model has to be changed."""
