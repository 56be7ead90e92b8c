"""Through real processes: the logprobs of prompts, beside every kind of answer."""

from typing import Any

import pytest

from tests.support.rigs.rig import Rig, ask, http

DISTINCT = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
LETTER = 500_065
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": DISTINCT}}


async def answered(server: Rig, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with http() as session, session.post(f"{server.url}/{path}", json=body) as response:
        return response.status, await response.json()


def check(reported: list[Any], tokens: int, alternatives: int) -> None:
    """The scripted engine says of a prompt's token at place n that its rank is n, and its logprob
    minus n over ten. Its alternatives are all the same token."""
    assert len(reported) == tokens
    assert reported[0] is None
    for place, entry in enumerate(reported[1:], 1):
        scores = list(entry.values())
        assert len(scores) == 1 + min(1, alternatives)
        assert scores[0]["rank"] == place
        assert scores[0]["logprob"] == pytest.approx(-place / 10)
        assert alternatives == 0 or scores[1]["rank"] == alternatives


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n": 3},
        {"n": 2, "best_of": 3, "temperature": 1},
        {"n": 2, "use_beam_search": True},
        {"logprobs": True, "top_logprobs": 3},
    ],
)
async def test_a_conversation_s(server: Rig, settings: dict[str, Any]) -> None:
    body = ask("alpha", {"tokens": 3}, stream=False, prompt_logprobs=1, **settings)
    status, whole = await answered(server, "chat/completions", body)
    assert status == 200, whole
    assert len(whole["choices"]) == settings.get("n", 1)
    assert whole["choices"][0]["message"]["content"] == "word word word "
    check(whole["prompt_logprobs"], whole["usage"]["prompt_tokens"], 1)
    if "logprobs" in settings:
        assert len(whole["choices"][0]["logprobs"]["content"]) == 3


async def test_a_prompt_s_logprobs_are_sent_once_where_an_answer_is_made_again(server: Rig) -> None:
    content = {"pieces": ["[1, ", "1]"], "again": ["[3]"]}
    body = ask("alpha", content, stream=False, prompt_logprobs=0, response_format=FORM)
    status, whole = await answered(server, "chat/completions", body)
    assert status == 200, whole
    assert whole["choices"][0]["message"]["content"] == "[3]"
    check(whole["prompt_logprobs"], whole["usage"]["prompt_tokens"], 0)


async def test_those_of_several_prompts(server: Rig) -> None:
    body = {"model": "alpha", "prompt": ["abc", "de"], "n": 2, "prompt_logprobs": 1}
    for more in ({}, {"max_tokens": 0}, {"echo": True, "logprobs": 0}):
        status, whole = await answered(server, "completions", body | more)
        assert status == 200, whole
        for choice, prompt in zip(whole["choices"], ["abc", "abc", "de", "de"], strict=True):
            check(choice["prompt_logprobs"], len(prompt), 1)
            own = next(iter(choice["prompt_logprobs"][1].values()))
            assert own["decoded_token"] == prompt[1]
            assert choice["text"].startswith(prompt) is ("echo" in more)
            assert bool(choice["text"]) is ("max_tokens" not in more)


async def test_too_many_are_refused(server: Rig) -> None:
    body = {"model": "alpha", "prompt": [LETTER] * 20_000, "max_tokens": 0, "prompt_logprobs": 20}
    status, error = await answered(server, "completions", body)
    assert (status, error["error"]["param"]) == (400, "prompt_logprobs")
    assert "fewer alternatives" in error["error"]["message"]
    status, whole = await answered(server, "completions", body | {"prompt_logprobs": 0})
    assert status == 200, whole
    check(whole["choices"][0]["prompt_logprobs"], 20_000, 0)
