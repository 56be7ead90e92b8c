"""Embeddings, reranking and tokenizing over HTTP, with workers that say what a test wants."""

import asyncio
import json
import struct
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable
from typing import Any

import openai
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquired
from lmx.protocol.messages.data import Refused
from lmx.protocol.messages.tasks import (
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Embed,
    Rerank,
    Scores,
    TaskFinished,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
    Vectors,
)
from lmx.protocol.states import ModelKind
from lmx.router.inference import scoring
from lmx.router.inference.tasks import floats_of
from tests.support.fakes.fake_peers import cold, ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

VECTORS = ((0.5, -1.25, 3.0), (1.0, 0.1, -0.0), (7.5, 8.0, 9.25))


def packed(*vectors: tuple[float, ...]) -> bytes:
    return b"".join(struct.pack("<3f", *vector) for vector in vectors)


def embeds(task: Any) -> Iterable[Any]:
    """Answer with VECTORS, in parts and not in order."""
    count = len(task.texts) or len(task.tokens)
    if count == 3:
        yield Vectors(task.stream_id, (2, 0), 3, packed(VECTORS[2], VECTORS[0]))
        yield Vectors(task.stream_id, (1,), 3, packed(VECTORS[1]))
    else:
        yield Vectors(task.stream_id, (0,), 3, packed(VECTORS[0]))
    yield TaskFinished(task.stream_id, 11)


async def serve(rig: Rig, kind: ModelKind | None, script: Any) -> None:
    rig.worker.task_script = script
    await rig.publish(ready(MODEL, INSTANCE, kind=kind), default=MODEL)


async def refused(rig: Rig, path: str, **body: Any) -> dict[str, Any]:
    status, answer = await rig.post_json(path, **body)
    assert status == 400, answer
    error: dict[str, Any] = answer["error"]
    return error


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v3/embeddings"])
async def test_vectors_come_in_the_inputs_order(rig: Rig, path: str) -> None:
    await serve(rig, ModelKind.EMBEDDING, embeds)
    status, answer = await rig.post_json(path, input=["a", "b", "c"], user="u", dimensions=3)
    assert status == 200, answer
    assert answer["object"] == "list"
    assert answer["model"] == MODEL
    assert answer["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    for index, item in enumerate(answer["data"]):
        assert (item["object"], item["index"]) == ("embedding", index)
        assert item["embedding"] == pytest.approx(VECTORS[index])
    (task,) = rig.worker.tasks
    assert isinstance(task, Embed)
    assert (task.texts, task.tokens, task.dimensions) == (("a", "b", "c"), (), 3)


async def test_base64_is_float32_in_little_endian(rig: Rig) -> None:
    await serve(rig, ModelKind.EMBEDDING, embeds)
    _, answer = await rig.post_json("/v1/embeddings", input="a", encoding_format="base64")
    raw = b64decode(answer["data"][0]["embedding"])
    assert struct.unpack("<3f", raw) == VECTORS[0]


async def test_the_openai_sdk_reads_both_forms(rig: Rig) -> None:
    await serve(rig, ModelKind.EMBEDDING, embeds)
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="-") as client:
        # Without a format the SDK asks for base64, and decodes it.
        default = await client.embeddings.create(model=MODEL, input=["a", "b", "c"])
        floats = await client.embeddings.create(
            model=MODEL, input=["a", "b", "c"], encoding_format="float"
        )
    for answer in (default, floats):
        for item, vector in zip(answer.data, VECTORS, strict=True):
            assert item.embedding == pytest.approx(vector)


@pytest.mark.parametrize(
    ("given", "texts", "tokens"),
    [
        ("a", ("a",), ()),
        (["a"], ("a",), ()),
        ([1, 2], (), ((1, 2),)),
        ([[3]], (), ((3,),)),
    ],
)
async def test_forms_of_input(rig: Rig, given: Any, texts: Any, tokens: Any) -> None:
    await serve(rig, ModelKind.EMBEDDING, embeds)
    status, answer = await rig.post_json("/v1/embeddings", input=given)
    assert status == 200, answer
    (task,) = rig.worker.tasks
    assert isinstance(task, Embed)
    assert (task.texts, task.tokens) == (texts, tokens)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [[1, -1]]}, "input[0][1]"),
        ({"input": 3}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ],
)
async def test_a_bad_embedding_request_names_the_field(rig: Rig, body: Any, param: str) -> None:
    await serve(rig, ModelKind.EMBEDDING, embeds)
    assert (await refused(rig, "/v1/embeddings", **body))["param"] == param
    assert not rig.worker.tasks


async def test_a_model_of_another_kind_is_refused(rig: Rig) -> None:
    await serve(rig, ModelKind.CHAT, embeds)
    assert (await refused(rig, "/v1/embeddings", input="a"))["param"] == "model"
    assert (await refused(rig, "/v1/rerank", query="a", documents=["b"]))["param"] == "model"
    assert (await refused(rig, "/v1/audio/speech", input="a"))["param"] == "model"


async def test_a_worker_may_refuse(rig: Rig) -> None:
    await serve(
        rig,
        None,
        lambda task: [
            Refused(task.stream_id, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "300 > 256", "input[1]")
        ],
    )
    error = await refused(rig, "/v1/embeddings", input="a")
    assert error["param"] == "input[1]"
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "script",
    [
        lambda task: [TaskFinished(task.stream_id, 1)],
        lambda task: [Vectors(task.stream_id, (0, 0), 3, packed(*VECTORS[:2]))],
        lambda task: [Vectors(task.stream_id, (1,), 3, packed(VECTORS[0]))],
        lambda task: [Vectors(task.stream_id, (0,), 3, b"short")],
    ],
)
async def test_a_worker_that_answers_nonsense_is_no_answer(rig: Rig, script: Any) -> None:
    await serve(rig, ModelKind.EMBEDDING, script)
    status, answer = await rig.post_json("/v1/embeddings", input="a")
    assert (status, answer["error"]["code"]) == (500, "protocol_error")


async def test_a_client_that_leaves_cancels(rig: Rig) -> None:
    await serve(rig, ModelKind.EMBEDDING, lambda _: ())
    request = asyncio.create_task(rig.post_json("/v1/embeddings", input="a"))
    await until(lambda: rig.worker.tasks)
    assert rig.router.workers.open_streams == 1
    request.cancel()
    await until(lambda: rig.worker.cancelled_tasks == [rig.worker.tasks[0].stream_id])
    assert rig.router.workers.open_streams == 0


async def test_a_worker_on_its_way_out_is_replaced(rig: Rig) -> None:
    await serve(
        rig,
        ModelKind.EMBEDDING,
        lambda task: [Refused(task.stream_id, ErrorCode.MODEL_UNLOADED, "draining")],
    )
    other = rig.add_worker("0000000b", None)  # type: ignore[arg-type]
    other.task_script = embeds
    rig.supervisor.acquire_reply = lambda _: Acquired(MODEL, "0000000b")
    status, _ = await rig.post_json("/v1/embeddings", input="a")
    assert (status, len(rig.worker.tasks), len(other.tasks)) == (200, 1, 1)


async def test_a_cold_model_is_loaded_first(rig: Rig) -> None:
    rig.worker.task_script = embeds
    rig.supervisor.acquire_reply = lambda _: Acquired(MODEL, INSTANCE)
    await rig.publish(cold(MODEL), default=MODEL)
    assert (await rig.post_json("/v1/embeddings", input="a"))[0] == 200


def reranks(task: Any) -> Iterable[Any]:
    yield Scores(task.stream_id, (1, 2), (0.9, 0.1))
    yield Scores(task.stream_id, (0, 3), (0.1, 0.5))
    yield TaskFinished(task.stream_id, 40)


DOCUMENTS = ["a", {"text": "b"}, "c", "d"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_documents_come_best_first(rig: Rig, path: str) -> None:
    await serve(rig, ModelKind.RERANK, reranks)
    status, answer = await rig.post_json(path, query="q", documents=DOCUMENTS)
    assert status == 200, answer
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == MODEL
    assert answer["usage"]["total_tokens"] == 40
    assert answer["results"] == [
        {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
        {"index": 3, "document": {"text": "d"}, "relevance_score": 0.5},
        {"index": 0, "document": {"text": "a"}, "relevance_score": 0.1},
        {"index": 2, "document": {"text": "c"}, "relevance_score": 0.1},
    ]
    (task,) = rig.worker.tasks
    assert isinstance(task, Rerank)
    assert (task.query, task.documents) == ("q", ("a", "b", "c", "d"))


async def test_the_best_alone_and_without_their_texts(rig: Rig) -> None:
    await serve(rig, ModelKind.RERANK, reranks)
    _, answer = await rig.post_json(
        "/v1/rerank", query="q", documents=DOCUMENTS, top_n=2, return_documents=False
    )
    assert answer["results"] == [
        {"index": 1, "relevance_score": 0.9},
        {"index": 3, "relevance_score": 0.5},
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "q", "documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"query": "q", "documents": ["a", 1]}, "documents[1]"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc"),
    ],
)
async def test_a_bad_rerank_request_names_the_field(rig: Rig, body: Any, param: str) -> None:
    await serve(rig, ModelKind.RERANK, reranks)
    assert (await refused(rig, "/v1/rerank", **body))["param"] == param


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_pairs_are_scored_in_their_order(rig: Rig, path: str) -> None:
    await serve(rig, ModelKind.RERANK, reranks)
    texts = ["a", "b", "c", "d"]
    status, answer = await rig.post_json(path, text_1="q", text_2=texts)
    assert status == 200, answer
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert answer["usage"] == {"prompt_tokens": 40, "total_tokens": 40}
    assert [entry["score"] for entry in answer["data"]] == [0.1, 0.9, 0.1, 0.5]
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    await rig.post_json(path, text_1=["q", "r", "s", "t"], text_2=texts)
    await rig.post_json(path, text_1=["q"], text_2=texts)
    one, each, same = [task for task in rig.worker.tasks if isinstance(task, Rerank)]
    assert (one.query, one.documents, one.queries) == ("q", ("a", "b", "c", "d"), ())
    assert (each.documents, each.queries) == (("a", "b", "c", "d"), ("q", "r", "s", "t"))
    assert (same.query, same.queries) == ("q", ())


async def test_pairs_of_an_embedding_model_are_scored_by_their_cosine(rig: Rig) -> None:
    await serve(rig, ModelKind.EMBEDDING, embeds)
    status, answer = await rig.post_json("/score", text_1="q", text_2=["a", "b"])
    assert status == 200, answer
    scores = [entry["score"] for entry in answer["data"]]
    assert scores == pytest.approx([0.11348, 0.45576], abs=1e-4)
    (task,) = rig.worker.tasks
    assert isinstance(task, Embed)
    assert task.texts == ("q", "a", "b")


async def test_others_have_their_turn_while_many_pairs_are_scored(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [str(number) for number in range(200)]
    turns = 0
    read_in: list[int] = []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def read(vector: bytes) -> tuple[float, ...]:
        read_in.append(turns)
        return floats_of(vector)

    def many(task: Any) -> Iterable[Any]:
        data = packed(*VECTORS[:1] * 400)
        yield Vectors(task.stream_id, tuple(range(400)), 3, data)
        yield TaskFinished(task.stream_id, 400)

    monkeypatch.setattr(scoring, "floats_of", read)
    await serve(rig, ModelKind.EMBEDDING, many)
    others = asyncio.create_task(take_turns())
    try:
        status, answer = await rig.post_json("/score", text_1=texts, text_2=texts)
    finally:
        others.cancel()
    assert status == 200 and len(answer["data"]) == 200, answer
    assert len(read_in) == 400 and max(Counter(read_in).values()) <= 2 * scoring._AT_ONCE


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "q", "text_2": []}, "text_2"),
        ({"text_1": "q", "text_2": ["a", 1]}, "text_2[1]"),
        ({"text_1": ["q", "r"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "q", "text_2": "a", "use_activation": False}, "use_activation"),
    ],
)
async def test_a_bad_score_request_names_the_field(rig: Rig, body: Any, param: str) -> None:
    await serve(rig, ModelKind.RERANK, reranks)
    assert (await refused(rig, "/score", **body))["param"] == param


@pytest.mark.parametrize(
    ("kind", "said", "param"),
    [
        (ModelKind.RERANK, "documents[1]", "text_2[1]"),
        (ModelKind.RERANK, "query", "text_1"),
        (ModelKind.EMBEDDING, "input[0]", "text_1[0]"),
        (ModelKind.EMBEDDING, "input[2]", "text_2[1]"),
    ],
)
async def test_a_worker_s_refusal_of_a_pair_is_reported_by_its_name(
    kind: ModelKind, said: str, param: str
) -> None:
    def refuses(task: Any) -> Iterable[Any]:
        words = f"`{said}` has 9 tokens."
        yield Refused(task.stream_id, ErrorCode.CONTEXT_LENGTH_EXCEEDED, words, said)

    async with router_rig() as rig:
        await serve(rig, kind, refuses)
        error = await refused(rig, "/score", text_1="q", text_2=["a", "b"])
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert error["message"] == f"`{param}` has 9 tokens."


@pytest.mark.parametrize("kind", [ModelKind.CHAT, ModelKind.SPEECH, ModelKind.TRANSCRIPTION])
async def test_a_model_of_another_kind_scores_nothing(rig: Rig, kind: ModelKind) -> None:
    await serve(rig, kind, reranks)
    error = await refused(rig, "/score", text_1="q", text_2="a")
    assert error["param"] == "model"
    assert "A reranking model scores texts" in error["message"]
    assert not rig.worker.tasks


async def test_a_tokenizer_is_described() -> None:
    def describes(task: Any) -> Iterable[Any]:
        assert isinstance(task, DescribeTokenizer)
        yield TokenizerDescribed(task.stream_id, '{"tokenizer_class": "T"}')

    async with router_rig() as rig:
        await serve(rig, None, describes)
        async with rig.http.get(f"{rig.url}/tokenizer_info", params={"model": MODEL}) as response:
            assert response.status == 200
            assert await response.json() == {"tokenizer_class": "T"}
        async with rig.http.get(f"{rig.url}/tokenizer_info", params={"model": "no"}) as response:
            assert response.status == 404
        # An image of a stranger's page would load models.
        for headers, status in (
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Origin": "https://app.example"}, 403),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
        ):
            async with rig.http.get(
                f"{rig.url}/tokenizer_info", params={"model": MODEL}, headers=headers
            ) as response:
                assert response.status == status


def tokenizes(task: Any) -> Iterable[Any]:
    if isinstance(task, Detokenize):
        yield Detokenized(task.stream_id, "hé")
    else:
        yield Tokenized(task.stream_id, (5, 6), 256, '["h","é"]'.encode() if task.pieces else b"")


async def test_tokenize_and_back(rig: Rig) -> None:
    await serve(rig, ModelKind.RERANK, tokenizes)
    assert await rig.post_json("/tokenize", model=MODEL, prompt="hé") == (
        200,
        {"count": 2, "max_model_len": 256, "tokens": [5, 6], "token_strs": None},
    )
    _, answer = await rig.post_json(
        "/tokenize", prompt="hé", return_token_strs=True, add_special_tokens=False
    )
    assert answer["token_strs"] == ["h", "é"]
    assert await rig.post_json("/detokenize", tokens=[5, 6]) == (200, {"prompt": "hé"})
    first, second, third = rig.worker.tasks
    assert isinstance(first, Tokenize)
    assert isinstance(second, Tokenize)
    assert isinstance(third, Detokenize)
    assert (first.text, first.add_special_tokens, first.pieces) == ("hé", True, False)
    assert (second.add_special_tokens, second.pieces) == (False, True)
    assert third.tokens == (5, 6)


async def test_the_tokens_of_a_conversation_in_anthropic_s_form_are_counted() -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}]
    async with router_rig() as rig:
        await serve(rig, ModelKind.CHAT, tokenizes)
        assert await rig.post_json(
            "/v1/messages/count_tokens", model=MODEL, messages=turns, system="Be kind."
        ) == (200, {"input_tokens": 2})
        (task,) = rig.worker.tasks
        assert isinstance(task, Tokenize) and task.messages is not None
        assert [message["role"] for message in task.messages] == ["system", "user", "assistant"]
        assert task.continue_final_message
        status, refused_body = await rig.post_json("/v1/messages/count_tokens", model=MODEL)
        assert (status, refused_body["type"]) == (400, "error")


async def test_a_conversation_is_tokenized_with_all_that_its_template_takes() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with router_rig() as rig:
        await serve(rig, ModelKind.CHAT, tokenizes)
        status, answer = await rig.post_json(
            "/tokenize",
            messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            add_generation_prompt=False,
            tools=[tool],
            chat_template_kwargs={"enable_thinking": False},
        )
        assert status == 200, answer
        (task,) = rig.worker.tasks
        assert isinstance(task, Tokenize)
        assert task.messages == ({"role": "user", "content": "hi"},)
        assert (task.text, task.add_generation_prompt) == (None, False)
        assert task.template_kwargs == {"enable_thinking": False}
        assert task.tool_use is not None
        assert task.tool_use.tools[0]["function"]["name"] == "f"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"prompt": "a", "chat_template": "{{ x }}"}, "chat_template"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_a_bad_tokenize_request_names_the_field(
    rig: Rig, path: str, body: Any, param: str
) -> None:
    await serve(rig, ModelKind.CHAT, tokenizes)
    assert (await refused(rig, path, **body))["param"] == param


async def test_many_vectors_are_whole() -> None:
    """Written out in turns with others: none may be lost or doubled."""
    count = 200

    def script(task: Any) -> Iterable[Any]:
        for index in reversed(range(count)):
            yield Vectors(task.stream_id, (index,), 3, packed((float(index), 0.0, 0.0)))
        yield TaskFinished(task.stream_id, count)

    async with router_rig() as rig:
        await serve(rig, ModelKind.EMBEDDING, script)
        _, answer = await rig.post_json("/v1/embeddings", input=["x"] * count)
        assert [item["embedding"][0] for item in answer["data"]] == list(range(count))
        assert json.dumps(answer)
