"""Gaps in texts: `suffix` of completions and of Ollama's generate, and llama.cpp's /infill."""

import json
from typing import Any

import pytest

from lmx.protocol.messages.data import Infill, InfillFile
from tests.support.fakes.fake_peers import cold, ready
from tests.support.rigs.router_rig import INSTANCE, MODEL, TEXTS, router_rig

TEXT = "".join(TEXTS)
GAP = {"input_prefix": "def f(", "input_suffix": "return 1"}


async def test_every_way_to_ask_is_the_same_to_a_worker() -> None:
    async with router_rig() as rig:
        for path, body, expected in (
            ("/v1/completions", {"prompt": "a", "suffix": "b"}, Infill("b")),
            ("/v1/completions", {"prompt": "", "suffix": "b"}, Infill("b")),
            ("/api/generate", {"model": MODEL, "prompt": "a", "suffix": "b", "stream": False},
             Infill("b")),
            ("/api/generate", {"model": MODEL, "suffix": "b", "stream": False}, Infill("b")),
            ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 0,
                         "input_extra": [{"text": "x"}, {"filename": "y", "text": "z"}]},
             Infill("b", "c", (InfillFile("tmp", "x"), InfillFile("y", "z")), "input_suffix")),
        ):  # fmt: skip
            status, answer = await rig.post_json(path, **body)
            assert status == 200, answer
            request = rig.worker.streams[-1].request
            prompt = body.get("prompt" if path != "/infill" else "input_prefix", "")
            assert (request.prompt, request.infill, request.parse) == (prompt, expected, False)
            assert request.messages is None
        assert request.max_tokens == 0
        assert "context" not in answer


async def test_infill_answers_as_llama_cpp_does() -> None:
    async with router_rig() as rig:
        await rig.publish(ready(MODEL, INSTANCE, created_s=1, context_length=500), default=MODEL)
        status, whole = await rig.post_json(
            "/infill", **GAP, samplers=["top_k"], cache_prompt=True, seed=-1, prompt=None
        )
        assert (status, whole["content"], whole["stop"]) == (200, TEXT, True)
        assert (whole["model"], whole["stop_type"], whole["stopping_word"]) == (MODEL, "eos", "")
        assert whole["generation_settings"] == {"n_ctx": 500}
        assert whole["tokens_predicted"] == whole["timings"]["predicted_n"] > 0
        assert rig.worker.streams[-1].request.sampling.seed is None
        events = [json.loads(one) for one in await rig.post_events("/infill", **GAP)]
        assert "".join(one["content"] for one in events) == TEXT
        assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
        assert set(events[-1]) == set(whole)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/infill", {"input_prefix": "a"}, "input_suffix"),
    ("/infill", {**GAP, "input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
    ("/infill", {**GAP, "input_extra": [{"text": "a"}] * 1025}, "input_extra"),
    ("/infill", {**GAP, "grammar": 'root ::= "a"'}, "grammar"),
    ("/infill", {**GAP, "json_schema": {}}, "json_schema"),
    ("/infill", {**GAP, "n_probs": 3}, "n_probs"),
    ("/v1/completions", {"prompt": [1], "suffix": "a"}, "prompt"),
    ("/v1/completions", {"prompt": "a", "suffix": "a", "echo": True}, "echo"),
    (
        "/v1/completions",
        {"prompt": "a", "suffix": "a", "truncate_prompt_tokens": 3},
        "truncate_prompt_tokens",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), BAD)
async def test_faults(path: str, body: dict[str, Any], param: str) -> None:
    async with router_rig() as rig:
        status, answer = await rig.post_json(path, model=MODEL, **body)
        assert (status, answer["error"]["param"]) == (400, param), answer
        assert not rig.worker.streams


@pytest.mark.parametrize("name", ["system", "context", "images"])
async def test_what_only_a_template_would_write_is_refused_with_a_suffix(name: str) -> None:
    value = {"system": "s", "context": [1], "images": ["aGk="]}[name]
    async with router_rig() as rig:
        body = {"model": MODEL, "prompt": "a", "suffix": "b", name: value}
        status, answer = await rig.post_json("/api/generate", **body)
        assert status == 400
        assert f"`{name}` can't be combined with `suffix`" in answer["error"]


async def test_a_model_that_can_t_is_refused_by_the_names_of_those_that_can() -> None:
    async with router_rig() as rig:
        plain = ready(MODEL, INSTANCE, created_s=1, capabilities=("tools",))
        # Of one that was not loaded yet its files say it.
        await rig.publish(plain, cold("coder", infills=True), cold("other", infills=False))
        for path, body, param in (
            ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
            ("/infill", GAP, "input_suffix"),
        ):
            status, answer = await rig.post_json(path, model=MODEL, **body)
            error = answer["error"]
            assert (status, error["param"], error["code"]) == (400, param, "unsupported_value")
            assert "name a model that has them: coder" in error["message"]
        status, answer = await rig.post_json("/api/generate", model=MODEL, prompt="a", suffix="b")
        assert status == 400
        assert "coder" in answer["error"]
        # Without a gap it answers.
        status, _ = await rig.post_json("/v1/completions", model=MODEL, prompt="a", suffix="")
        assert status == 200
        _, found = await rig.json("GET", "/v1/models")
        shown = {one["id"]: one["capabilities"] for one in found["data"]}
        assert (shown["coder"], shown["other"]) == (["infill"], [])
        _, said = await rig.json("GET", "/api/tags")
        tags = {one["name"]: one["capabilities"] for one in said["models"]}
        assert tags["coder:latest"] == ["completion", "tools", "insert"]
        assert tags["other:latest"] == ["completion", "tools"]
        status, answer = await rig.post_json("/infill", model="other", **GAP)
        assert status == 400 and "name a model that has them: coder" in answer["error"]["message"]
        await rig.publish(plain)
        _, answer = await rig.post_json("/infill", model=MODEL, **GAP)
        assert "no model that is known here has them" in answer["error"]["message"]
