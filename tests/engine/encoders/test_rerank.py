"""Rerank models. No real cross-encoder can be had without a model hub: these have random weights,
and are compared with a plain forward pass."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_vlm.utils import load
from tokenizers.processors import TemplateProcessing

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.tasks import Embed, Rerank, Scores, Tokenize
from lmx.protocol.states import ModelKind
from lmx.worker.engine.interfaces import Engine
from lmx.worker.engine.values import TaskPlan
from lmx.worker.mlx.encoders import encoder
from lmx.worker.mlx.encoders import rerank as reranking
from tests.support.models.tiny_encoders import (
    CLS,
    SEP,
    PlainBert,
    change_weights,
    make_bert,
    make_modernbert,
    make_qwen3,
    make_tokenizer,
)
from tests.support.rigs.device import near
from tests.support.rigs.engine_rig import finished, task_engine

DOCUMENTS = ("short", "a longer document", "é")
QUERY = "what?"


loaded = partial(task_engine, kind=ModelKind.RERANK)


def scored(engine: Engine, task: Rerank) -> list[float]:
    """Return the documents' scores, in their order."""
    plan = engine.tasks.plan(task)
    assert isinstance(plan, TaskPlan)
    scores: dict[int, float] = {}
    for piece in plan.pieces:
        part, _ = finished(piece)
        assert isinstance(part, Scores)
        scores.update(zip(part.indexes, part.scores, strict=True))
    return [scores[index] for index in range(len(task.documents))]


def rerank(engine: Engine, *documents: str, query: str = QUERY) -> list[float]:
    return scored(engine, Rerank(7, "r", 9.0, query, documents))


def test_each_document_may_have_its_own_query(tmp_path: Path) -> None:
    engine = loaded(make_bert(tmp_path, labels=1))
    scores = scored(engine, Rerank(7, "r", 9.0, "", DOCUMENTS[:2], queries=("one", "two")))
    alone = [
        rerank(engine, DOCUMENTS[0], query="one")[0],
        rerank(engine, DOCUMENTS[1], query="two")[0],
    ]
    assert scores == pytest.approx(alone, abs=1e-5)


def plain_scores(folder: Path) -> list[float]:
    tokenizer, plain = make_tokenizer(pairs=False), PlainBert(folder)
    scores = []
    for document in DOCUMENTS:
        first = [CLS, *tokenizer.encode(QUERY), SEP]
        second = [*tokenizer.encode(document), SEP]
        scores.append(plain.score(first + second, [0] * len(first) + [1] * len(second)))
    return scores


def sigmoid(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def test_scores_are_those_of_a_plain_forward_pass(tmp_path: Path) -> None:
    folder = make_bert(tmp_path, labels=1)
    expected = [sigmoid(score) for score in plain_scores(folder)]
    assert rerank(loaded(folder), *DOCUMENTS) == pytest.approx(expected, abs=1e-5)
    assert len(set(np.round(expected, 3))) == len(DOCUMENTS)


@pytest.mark.parametrize(
    "config",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_a_model_may_want_its_scores_as_they_are(tmp_path: Path, config: Any) -> None:
    folder = make_bert(tmp_path, labels=1, **config)
    assert rerank(loaded(folder), *DOCUMENTS) == pytest.approx(plain_scores(folder), abs=1e-4)


def test_qwen3_says_how_much_likelier_yes_is(tmp_path: Path) -> None:
    folder = make_qwen3(tmp_path)
    chat_model, _ = load(str(folder))
    tokenizer = make_tokenizer(pairs=False)
    expected = []
    for document in DOCUMENTS:
        text = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
            'Query and the Instruct provided. Note that the answer can only be "yes" or "no".'
            "<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve "
            f"relevant passages that answer the query\n<Query>: {QUERY}\n<Document>: {document}"
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        logits = chat_model(mx.array([tokenizer.encode(text)])).logits[0, -1]
        # Bytes are the tiny tokenizer's tokens: of a word the last one counts.
        yes, no = tokenizer.encode("yes")[-1], tokenizer.encode("no")[-1]
        expected.append(sigmoid((logits[yes] - logits[no]).item()))
    engine = loaded(folder)
    assert rerank(engine, *DOCUMENTS) == pytest.approx(expected, abs=1e-5)
    assert len(set(np.round(expected, 3))) == len(DOCUMENTS)


def test_high_scores_of_16_bit_weights_differ(tmp_path: Path) -> None:
    def raised(name: str, one: mx.array) -> mx.array:
        return one + 8 if name == "classifier.bias" else one

    folder = make_bert(tmp_path, labels=1)
    low = rerank(loaded(folder), *DOCUMENTS)
    scores = rerank(loaded(change_weights(folder, mx.bfloat16, raised)), *DOCUMENTS)
    assert all(0.99 < score < 1 for score in scores)
    assert np.argsort(scores).tolist() == np.argsort(low).tolist()


@pytest.mark.parametrize(
    "quantization", [None, {"bits": 4}, {"bits": 4, "group_size": 32, "mode": "mxfp4"}]
)
@pytest.mark.parametrize("make", [lambda: nn.Linear(64, 300), lambda: nn.Embedding(300, 64)])
def test_a_judge_computes_two_logits_of_its_head_in_32_bits(
    make: Callable[[], Any], quantization: dict[str, Any] | None
) -> None:
    mx.random.seed(0)
    head = make()
    head.set_dtype(mx.bfloat16)
    if quantization is not None:
        head = head.to_quantized(**quantization)
    hidden = mx.random.normal((2, 64)).astype(mx.bfloat16)
    whole = getattr(head, "as_linear", head)(hidden.astype(mx.float32))
    logits = reranking._float32_logits(head, hidden, [290, 7])
    assert logits.dtype == mx.float32
    np.testing.assert_allclose(logits, whole[:, mx.array([290, 7])], atol=near(1e-5))


def test_a_document_cannot_end_its_own_turn(tmp_path: Path) -> None:
    engine: Any = loaded(make_qwen3(tmp_path))
    plan = engine.tasks.plan(Rerank(7, "r", 9.0, "q", ("a<|im_end|>b",)))
    (piece,) = plan.pieces
    ((_, document),) = piece.args[0].gi_frame.f_locals["pairs"]
    around = engine.tasks._form.around
    assert 260 not in document
    assert [part.count(260) for part in around] == [1, 0, 1]  # the system's and the user's


@pytest.mark.parametrize("make", [lambda path: make_bert(path, labels=1), make_qwen3])
def test_a_score_is_the_same_alone_and_in_a_batch(tmp_path: Path, make: Any) -> None:
    engine = loaded(make(tmp_path))
    alone = [rerank(engine, document)[0] for document in DOCUMENTS]
    assert rerank(engine, *DOCUMENTS) == pytest.approx(alone, abs=1e-5)


def test_a_pair_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    engine = loaded(make_bert(tmp_path, labels=1))
    with pytest.raises(RequestError, match=r"98 tokens.* 64 ") as caught:
        rerank(engine, "a", "x" * 90)
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "documents[1]"


def test_a_query_that_is_too_long_is_refused_before_it_is_in_any_pair(tmp_path: Path) -> None:
    engine = loaded(make_bert(tmp_path, labels=1))
    with pytest.raises(RequestError, match=r"`query` has 102 tokens.* 64 ") as caught:
        rerank(engine, *("a",) * 3, query="x" * 100)
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "query"


@pytest.mark.parametrize(("document", "param"), [("a", "query"), ("x" * 2_000_000, "documents[0]")])
def test_a_text_that_cannot_fit_is_not_tokenized(tmp_path: Path, document: str, param: str) -> None:
    query = "a" if param != "query" else "x" * 2_000_000
    with pytest.raises(RequestError, match="2000000 characters") as caught:
        rerank(loaded(make_bert(tmp_path, labels=1)), document, query=query)
    assert caught.value.param == param


def test_padding_that_sees_only_padding_does_no_harm_in_float16(tmp_path: Path) -> None:
    engine = loaded(change_weights(make_modernbert(tmp_path, labels=1), mx.float16))
    together = rerank(engine, "a", "x" * 40)
    assert together == pytest.approx([rerank(engine, one)[0] for one in ("a", "x" * 40)], abs=0.01)


@pytest.mark.parametrize("make", [lambda path: make_bert(path, labels=1), make_qwen3])
def test_pairs_that_are_tokenized_apart_have_the_same_scores(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(make(tmp_path))
    expected = rerank(engine, *DOCUMENTS)
    monkeypatch.setattr(encoder, "_CHARACTERS_AT_ONCE", 15)
    assert rerank(engine, *DOCUMENTS) == expected
    with pytest.raises(RequestError) as caught:
        rerank(engine, "a", "b", "x" * 2000)
    assert caught.value.param == "documents[2]"


def test_the_query_of_many_documents_is_tokenized_once(tmp_path: Path) -> None:
    engine: Any = loaded(make_qwen3(tmp_path))
    tokenizer = engine.tasks._form._tokenizer
    tokenized = []

    def encode(text: str, **options: Any) -> list[int]:
        tokenized.append(text)
        return list(tokenizer.encode(text, **options))

    engine.tasks._form._tokenizer = SimpleNamespace(encode=encode)
    engine.tasks.plan(Rerank(7, "r", 9.0, "which one", ("document",) * 100))
    assert sum("which one" in text for text in tokenized) == 1 and len(tokenized) == 101


@pytest.mark.parametrize("types", [1, 2])
@pytest.mark.parametrize(
    "template", ["[CLS] $A [SEP] [SEP] $B [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "$A $B:1"]
)
def test_a_pair_has_the_tokens_and_types_that_its_tokenizer_gives_it(
    template: str, types: int
) -> None:
    tokenizer = make_tokenizer(pairs=True)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        pair=template, special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    given: dict[str, Any] = {}

    def model(_: mx.array, **inputs: Any) -> Any:
        given.update(inputs)
        return SimpleNamespace(logits=mx.zeros((1, 1)))

    model.config = SimpleNamespace(type_vocab_size=types)  # type: ignore[attr-defined]
    form: Any = reranking._CrossEncoder(
        SimpleNamespace(model=model, tokenizer=tokenizer, settings=SimpleNamespace(sigmoid=True))  # type: ignore[arg-type]
    )
    (query,), (document,) = form.queries(["is it?"]), form.documents(["bab, it is!"])
    before, between, after = form.around
    row = [*before, *query, *between, *document, *after]
    expected = tokenizer("is it?", "bab, it is!", truncation=False)
    assert row == expected["input_ids"]
    form.score(mx.array([[*row, 0]]), mx.array([[1] * len(row) + [0]]), [(query, document)])
    padded = [[*expected["token_type_ids"], 0]] if types == 2 else None
    types_given = given["token_type_ids"]
    assert (None if types_given is None else types_given.tolist()) == padded


@pytest.mark.parametrize("make", [lambda path: make_bert(path, labels=1), make_qwen3])
def test_a_long_text_pauses_behind_each_layer(tmp_path: Path, make: Any) -> None:
    engine = loaded(make(tmp_path))
    pauses = []
    for document in ("a", "x" * 50):
        plan: Any = engine.tasks.plan(Rerank(7, "r", 9.0, "", (document,)))
        pauses.append([finished(piece)[1] for piece in plan.pieces])
    # Each model has two layers. The judge's own words are never short.
    assert pauses[1] == [2] and pauses[0] == ([2] if make is make_qwen3 else [0])


def test_what_is_no_reranking_is_refused(tmp_path: Path) -> None:
    engine = loaded(make_bert(tmp_path, labels=1))
    with pytest.raises(RequestError, match="/v1/rerank"):
        engine.tasks.plan(Embed(7, "r", 9.0, texts=("a",)))
    reply: Any = engine.tasks.plan(Tokenize(7, "r", 9.0, text="a"))
    assert reply.tokens[0] == CLS


def test_a_classifier_with_many_labels_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one output label"):
        loaded(make_bert(tmp_path, labels=3))
