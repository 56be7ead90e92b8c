"""What the tests of the documents' examples decide: values for what the documents leave open, and
where API.md says otherwise than a document, with the reason.
"""

import json
from typing import Any, Final

from tests.support.clients.document_requests import Asked

FRANCE = '[{"role": "user", "content": "What is the capital of France?"}]'
CHAT: Final = ("POST", "/v1/chat/completions")

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
        },
    },
}

PYTHON_MENDED = {
    # Chat messages go to chat completions; the SDK's completions.create takes none.
    "ovms-195-python": ("client.completions.create", "client.chat.completions.create"),
    # The document leaves the messages out.
    "kiapi-156-python": ("messages=[...]", f"messages={FRANCE}"),
}
"""Python examples that are mistaken or not whole in their document."""

CALL = {
    "pieces": ['<tool_call>{"name": "get_weather", ', '"arguments": {"city": "NYC"}}</tool_call>']
}
CALLING = {"model": "stub", "messages": [{"role": "user", "content": json.dumps(CALL)}]}
"""A model may answer in words; this one calls."""

ANSWERED_BY_RULE = {"opta-135-answer": CALLING}
"""Answers that say more than their request makes sure of: what it is sent with."""

NOT_ALWAYS_THERE = {"opta-546-answer": "reason"}
"""A field that only an unhealthy server has."""

ERRORS: dict[str, tuple[Asked, int, dict[str, str | None]]] = {
    "kolosal-77-error": (
        Asked(*CHAT, body="{}"), 400, {"type": "invalid_request_error"}
    ),
    # API.md: without `model` the default model answers; what is missing here is the messages.
    "kolosal-578-error": (
        Asked(*CHAT, body='{"model": "my-model"}'), 400,
        {"type": "invalid_request_error", "param": "messages"},
    ),
    # API.md: the type of an unknown model is invalid_request_error, with a code.
    "kolosal-591-error": (
        Asked(*CHAT, body=f'{{"model": "non-existent-model", "messages": {FRANCE}}}'), 404,
        {"type": "invalid_request_error", "param": "model", "code": "model_not_found"},
    ),
    "kolosal-604-error": (
        Asked(*CHAT, body=json.dumps({
            "model": "stub", "messages": [{"role": "user", "content": '{"step_raise_at": 0}'}],
        })), 500, {"type": "server_error", "param": None},
    ),
    "opta-171-error": (
        Asked(*CHAT, body=f'{{"model": "invalid-model", "messages": {FRANCE}}}'), 404,
        {"type": "invalid_request_error", "param": "model", "code": "model_not_found"},
    ),
    "opta-694-error": (
        Asked("GET", "/v1/models/invalid"), 404,
        {"type": "invalid_request_error", "param": "model", "code": "model_not_found"},
    ),
}  # fmt: skip
"""What brings about the error that an example shows, and what of it is fixed."""

STREAMS = {
    CHAT: Asked(*CHAT, body=f'{{"model": "my-model", "stream": true, "messages": {FRANCE}}}'),
    ("POST", "/v1/completions"): Asked(
        "POST", "/v1/completions", body='{"model": "my-model", "stream": true, "prompt": "One"}'
    ),
}
"""What streams an answer on each route."""

PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "model": ({"model": "my-model"},),
    "messages": ({"messages": json.loads(FRANCE)},),
    "prompt": ({"prompt": "One"}, {"prompt": ["One", "Two"]}),
    "stream": ({"stream": False}, {"stream": True}),
    "stream_options": ({"stream": True, "stream_options": {}},),
    "stream_options.include_usage": (
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": False}},
    ),
    "temperature": ({"temperature": 0.0}, {"temperature": 2.0}),
    "top_p": ({"top_p": 0.01}, {"top_p": 1.0}),
    "top_k": ({"top_k": 5}, {"top_k": -1}),
    "max_tokens": ({"max_tokens": 1}, {"max_tokens": 2048}),
    "seed": ({"seed": 0}, {"seed": 7}),
    "presence_penalty": ({"presence_penalty": -2.0}, {"presence_penalty": 2.0}),
    "frequency_penalty": ({"frequency_penalty": -2.0}, {"frequency_penalty": 2.0}),
    "repetition_penalty": ({"repetition_penalty": 1.2}, {"repetition_penalty": 0.8}),
    "stop": ({"stop": "x"}, {"stop": ["a", "b", "c", "d"]}),
    "ignore_eos": ({"ignore_eos": True},),
    "include_stop_str_in_output": (
        {"include_stop_str_in_output": False},
        {"include_stop_str_in_output": True, "stop": "x"},
    ),
    "logprobs": ({"logprobs": True},),
    "tools": ({"tools": [TOOL]},),
    "tool_choice": (
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "required"},
        {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        },
    ),
    "response_format": (
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
    ),
    "n": ({"n": 2, "best_of": 2},),
    "best_of": ({"best_of": 2},),
    "length_penalty": ({"best_of": 2, "length_penalty": 0.5},),
    "num_assistant_tokens": ({"num_assistant_tokens": 3},),
    "assistant_confidence_threshold": ({"assistant_confidence_threshold": 0.4},),
    "max_ngram_size": ({"max_ngram_size": 3},),
}
"""Values of the parameters in the documents' tables, also from the ends of their ranges."""

PARAMETER_TABLES = (
    "Chat Completion Parameters", "Completion Parameters", "Request", "Generic",
    "Beam search sampling specific", "Multinomial sampling specific",
    "Speculative decoding specific", "Prompt lookup decoding specific",
)  # fmt: skip
"""The headings above the tables of a request's parameters."""
