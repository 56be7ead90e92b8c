"""Embeddings, reranking and tokenizing through real processes, with the official SDK."""

import asyncio
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from anthropic import Anthropic

from tests.support.models.tiny_encoders import PlainBert, make_bert
from tests.support.rigs.rig import Rig, serving_too, wait_until

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def encoders(
    server: Rig, minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A real embedding model, and a reranker with random weights: no real one can be had."""
    reranker = make_bert(tmp_path_factory.mktemp("models") / "reranker", labels=1)
    minilm = {"id": "minilm", "source": str(minilm_dir), "max_queue": 20}
    ranker = {"id": "ranker", "source": str(reranker), "preload": False}
    with serving_too(server, minilm, ranker):
        server.wait_state("minilm", "ready", deadline_s=300)
        yield


def post(server: Rig, path: str, **body: Any) -> tuple[int, Any]:
    root = server.url.removesuffix("/v1")
    request = urllib.request.Request(
        f"{root}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def works(server: Rig) -> bool:
    """Whether the embedding model has a request. One is queued until its inputs are tokenized."""
    line = server.worker("minilm")
    return bool(line["requests_active"] + line["requests_queued"])


def test_rerank_loads_its_model_and_sorts(server: Rig) -> None:
    documents = ["one", {"text": "the other one"}, "x"]
    status, answer = post(server, "/v1/rerank", model="ranker", query="q?", documents=documents)
    assert status == 200, answer
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    assert sorted(result["index"] for result in answer["results"]) == [0, 1, 2]
    texts = ["one", "the other one", "x"]
    for result in answer["results"]:
        assert result["document"]["text"] == texts[result["index"]]
    _, best = post(server, "/rerank", model="ranker", query="q?", documents=documents, top_n=1)
    assert best["results"] == answer["results"][:1]


def test_the_count_of_a_conversation_is_that_of_its_prompt(server: Rig) -> None:
    """With Anthropic's SDK and a model's own template, cold and with a cached prefix."""
    fields: dict[str, Any] = {
        "model": "smollm2",
        "system": [{"type": "text", "text": "You are brief. " * 40}],
        "messages": [
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Blue"},
            {"role": "user", "content": "Why?"},
        ],
    }
    url = server.url.removesuffix("/v1")
    with Anthropic(base_url=url, api_key="none", max_retries=0, timeout=300) as client:
        counted = client.messages.count_tokens(**fields).input_tokens
        cold = client.messages.create(max_tokens=4, **fields).usage
        warm = client.messages.create(max_tokens=4, **fields).usage
        begun = [*fields["messages"], {"role": "assistant", "content": "Because the"}]
        more = client.messages.create(max_tokens=4, **{**fields, "messages": begun})
        goes_on = client.messages.count_tokens(**{**fields, "messages": begun}).input_tokens
    for usage in (cold, warm):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert (warm.cache_read_input_tokens or 0) > 0.9 * counted
    assert more.usage.input_tokens + (more.usage.cache_read_input_tokens or 0) == goes_on
    assert goes_on > counted


def test_tokenize_and_back(server: Rig, minilm_dir: Path) -> None:
    status, answer = post(
        server, "/tokenize", model="minilm", prompt="hello world", return_token_strs=True
    )
    assert (status, answer) == (
        200,
        {
            "count": 4,
            "max_model_len": 256,
            "tokens": [101, 7592, 2088, 102],
            "token_strs": ["[CLS]", "hello", "world", "[SEP]"],
        },
    )
    _, back = post(server, "/detokenize", model="minilm", tokens=answer["tokens"][1:3])
    assert back == {"prompt": "hello world"}
    by_tokens = post(server, "/v1/embeddings", model="minilm", input=answer["tokens"])[1]
    states = PlainBert(minilm_dir).hidden(answer["tokens"]).mean(0)
    vector = np.array(by_tokens["data"][0]["embedding"])
    assert vector @ states / np.linalg.norm(states) > 0.99999


async def test_a_client_that_leaves_frees_the_worker(server: Rig) -> None:
    client = openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=300)
    async with client:
        # Minutes of work, if nobody stopped it.
        large = asyncio.create_task(
            client.embeddings.create(model="minilm", input=["word " * 250] * 400)
        )
        while not works(server):
            await asyncio.sleep(0.05)
        # Another client's turn comes in between.
        small = await client.embeddings.create(model="minilm", input="a")
        assert len(small.data) == 1
        assert not large.done()
        large.cancel()
        await asyncio.gather(large, return_exceptions=True)
    wait_until(
        lambda: server.log_events("worker-minilm", "task.cancelled"), "the task to be given up"
    )
    wait_until(lambda: not works(server), "the worker to be idle")


def test_a_worker_that_dies_answers_with_an_error_and_comes_back(server: Rig) -> None:
    outcome: list[tuple[int, Any]] = []
    thread = threading.Thread(
        target=lambda: outcome.append(
            post(server, "/v1/embeddings", model="minilm", input=["word " * 250] * 400)
        )
    )
    thread.start()
    wait_until(lambda: works(server), "the work to have begun")
    os.kill(server.worker("minilm")["pid"], signal.SIGKILL)
    thread.join(60)
    status, answer = outcome[0]
    assert (status, answer["error"]["code"]) == (500, "worker_crashed")
    server.wait_state("minilm", "ready", deadline_s=300)
    assert post(server, "/v1/embeddings", model="minilm", input="a")[0] == 200
