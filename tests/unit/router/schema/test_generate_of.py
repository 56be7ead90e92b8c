"""What bodies of all APIs that generate text say to a worker, by whichever name."""

from typing import Any

import pytest

from lmx.protocol.messages.data import Generate
from lmx.protocol.models.sampling import PARAMETERS
from lmx.router.schema.requests.anthropic.messages import parse_messages
from lmx.router.schema.requests.chat import parse_chat
from lmx.router.schema.requests.completions import parse_completion
from lmx.router.schema.requests.infill import parse_infill
from lmx.router.schema.requests.ollama.chat import parse_ollama_chat
from lmx.router.schema.requests.ollama.generate import parse_ollama_generate
from lmx.router.schema.requests.responses.responses import asked_of, generation_of, parse_responses
from lmx.router.schema.validation import MAX_COUNT

TURN = {"messages": [{"role": "user", "content": "a"}]}
VALUES = {name: 1 if name == "top_k" else 0.5 for name in PARAMETERS}
SHARED = {**VALUES, "stream": True, "keep_alive": 60}
ANTHROPIC = {"temperature", "top_p", "top_k"}


def of_responses(body: dict[str, Any]) -> Generate:
    request = parse_responses(body)
    return generation_of(request, asked_of(request, request.items, b"key"))


def of_ollama() -> dict[str, Any]:
    drawn = {name: value for name, value in VALUES.items() if name != "repetition_penalty"}
    options = {**drawn, "repeat_penalty": 0.5, "num_predict": 7, "stop": ["x"]}
    return {"model": "m", "options": options, "keep_alive": 60}


@pytest.mark.parametrize(
    ("generate", "parameters"),
    [
        (parse_chat({**TURN, **SHARED, "max_tokens": 7, "stop": "x"})[1], set(PARAMETERS)),
        (
            parse_completion({"prompt": "a", **SHARED, "max_tokens": 7, "stop": "x"})[1][0],
            set(PARAMETERS),
        ),
        (
            parse_messages(
                {**TURN, **SHARED, "model": "m", "max_tokens": 7, "stop_sequences": ["x"]}
            )[1],
            ANTHROPIC,
        ),
        (of_responses({"input": "a", **SHARED, "max_output_tokens": 7}), set(PARAMETERS)),
        (parse_ollama_chat({**TURN, **of_ollama()})[1], set(PARAMETERS)),
        (parse_ollama_generate({"prompt": "a", **of_ollama()})[1], set(PARAMETERS)),
    ],
    ids=["chat", "completions", "messages", "responses", "ollama chat", "ollama generate"],
)
def test_every_parameter_reaches_the_worker(generate: Generate, parameters: set[str]) -> None:
    sampling = {name: getattr(generate.sampling, name) for name in PARAMETERS}
    assert sampling == {name: VALUES[name] if name in parameters else None for name in PARAMETERS}
    assert (generate.max_tokens, generate.keep_alive_s, generate.whole) == (7, 60.0, False)


@pytest.mark.parametrize("asked", [-1, -2, None])
def test_as_many_tokens_as_fit_are_more_than_a_models_default(asked: int | None) -> None:
    gap = {"input_prefix": "a", "input_suffix": "b", "n_predict": asked}
    assert parse_infill(gap)[1].max_tokens == (None if asked is None else MAX_COUNT)
    if asked != -2:
        completion = parse_completion({"prompt": "a", "max_tokens": asked})[1][0]
        assert completion.max_tokens == (16 if asked is None else MAX_COUNT)
        assert parse_chat({**TURN, "max_tokens": asked})[1].max_tokens is None
