"""Embedding models: the vectors are those of a plain forward pass, alone and in a batch."""

import json
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_vlm.utils import load

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.tasks import (
    Detokenize,
    Detokenized,
    Embed,
    Rerank,
    Tokenize,
    Tokenized,
    Vectors,
)
from lmx.protocol.states import ModelKind
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES, encode
from lmx.worker.engine.interfaces import Engine
from lmx.worker.engine.values import TaskPlan
from lmx.worker.mlx.encoders import encoder
from lmx.worker.mlx.encoders.encoder import CPU_PIECE_TOKENS, GPU_PIECE_TOKENS, cut
from tests.support.models.tiny_encoders import (
    CLS,
    HIDDEN,
    POSITIONS,
    SEP,
    PlainBert,
    add_sentence_transformers,
    change_weights,
    make_bert,
    make_modernbert,
    make_qwen3,
)
from tests.support.rigs.device import near
from tests.support.rigs.engine_rig import finished, task_engine

TEXTS = ("a", "bc def", "quite a long text, longer than the others", "naïve 漢字 🌍")


loaded = partial(task_engine, kind=ModelKind.EMBEDDING)


def planned(engine: Engine, *texts: str, **fields: Any) -> TaskPlan:
    plan = engine.tasks.plan(Embed(7, "r", 9.0, texts=texts, **fields))
    assert isinstance(plan, TaskPlan)
    return plan


def tokenized(engine: Engine, text: str, **fields: Any) -> Tokenized:
    reply = engine.tasks.plan(Tokenize(7, "r", 9.0, text=text, **fields))
    assert isinstance(reply, Tokenized)
    return reply


def embed(engine: Engine, *texts: str, **fields: Any) -> np.ndarray[Any, Any]:
    """Return the vectors in the inputs' order."""
    vectors: dict[int, np.ndarray[Any, Any]] = {}
    for piece in planned(engine, *texts, **fields).pieces:
        part, _ = finished(piece)
        assert isinstance(part, Vectors)
        data = np.frombuffer(part.data, "<f4").reshape(-1, part.dimensions)
        vectors.update(zip(part.indexes, data, strict=True))
    return np.array([vectors[index] for index in range(len(vectors))])


def unit(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = vector / np.linalg.norm(vector)
    return result


def tokens_of(text: str) -> list[int]:
    """As the tiny tokenizer has them."""
    from tests.support.models.tiny_encoders import make_tokenizer

    return [CLS, *make_tokenizer(pairs=False).encode(text), SEP]


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("mean", lambda hidden: hidden.mean(0)),
        ("cls", lambda hidden: hidden[0]),
        ("max", lambda hidden: hidden.max(0)),
        ("lasttoken", lambda hidden: hidden[-1]),
    ],
)
def test_vectors_are_pooled_as_the_model_says(tmp_path: Path, pooling: str, pooled: Any) -> None:
    folder = add_sentence_transformers(make_bert(tmp_path / "m"), pooling)
    plain = PlainBert(folder)
    expected = [unit(pooled(plain.hidden(tokens_of(text)))) for text in TEXTS]
    np.testing.assert_allclose(embed(loaded(folder), *TEXTS), expected, atol=near(1e-5))


def test_what_the_model_does_not_normalize_stays_as_it_is(tmp_path: Path) -> None:
    folder = add_sentence_transformers(make_bert(tmp_path / "m"), "mean", normalize=False)
    plain = PlainBert(folder)
    expected = [plain.hidden(tokens_of(text)).mean(0) for text in TEXTS]
    engine = loaded(folder)
    np.testing.assert_allclose(embed(engine, *TEXTS), expected, atol=near(1e-4))
    short = embed(engine, *TEXTS, dimensions=5)
    np.testing.assert_allclose(short, np.array(expected)[:, :5], atol=near(1e-4))


def test_a_causal_model_takes_the_last_token(tmp_path: Path) -> None:
    folder = add_sentence_transformers(make_qwen3(tmp_path / "m"), "lasttoken")
    chat_model, _ = load(str(folder))
    expected = []
    for text in TEXTS:
        ids = mx.array([tokens_of(text)[1:-1]])
        expected.append(unit(np.array(chat_model.language_model.model(ids))[0, -1]))
    np.testing.assert_allclose(embed(loaded(folder), *TEXTS), expected, atol=near(1e-5))


@pytest.mark.parametrize(
    ("dtype", "scale"), [(mx.bfloat16, 1.0), (mx.float16, 1.0), (mx.float16, 1000.0)]
)
def test_vectors_of_16_bit_weights_have_length_1(
    tmp_path: Path, dtype: mx.Dtype, scale: float
) -> None:
    def scaled(name: str, one: mx.array) -> mx.array:
        return one * scale if name == "model.norm.weight" else one

    folder = add_sentence_transformers(make_qwen3(tmp_path / "m"), "lasttoken")
    expected = embed(loaded(folder), *TEXTS)
    vectors = embed(loaded(change_weights(folder, dtype, scaled)), *TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=near(1e-6))
    assert (vectors * expected).sum(1).min() > 0.99


def test_padding_that_sees_only_padding_does_no_harm_in_float16(tmp_path: Path) -> None:
    folder = make_modernbert(tmp_path / "m")
    engine = loaded(change_weights(add_sentence_transformers(folder), mx.float16))
    together = embed(engine, "a", "x" * 40)
    alone = [embed(engine, text)[0] for text in ("a", "x" * 40)]
    np.testing.assert_allclose(together, alone, atol=0.01)


@pytest.mark.parametrize("make", [make_bert, make_qwen3])
def test_a_vector_is_the_same_alone_and_in_a_batch(tmp_path: Path, make: Any) -> None:
    engine = loaded(add_sentence_transformers(make(tmp_path / "m")))
    together = embed(engine, *TEXTS)
    alone = np.concatenate([embed(engine, text) for text in TEXTS])
    cosines = (together * alone).sum(1)
    assert cosines.min() > 0.99999
    # The four are different at all.
    assert (together @ together.T - np.eye(len(TEXTS))).max() < 0.999


def test_fewer_dimensions_are_the_first_ones_at_full_length(tmp_path: Path) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m")))
    whole, short = embed(engine, *TEXTS), embed(engine, *TEXTS, dimensions=8)
    np.testing.assert_allclose(short, [unit(vector[:8]) for vector in whole], atol=near(1e-6))
    assert embed(engine, "a", dimensions=HIDDEN).shape == (1, HIDDEN)
    with pytest.raises(RequestError, match=rf"{HIDDEN + 1}.*{HIDDEN}") as caught:
        embed(engine, "a", dimensions=HIDDEN + 1)
    assert caught.value.param == "dimensions"


def test_tokens_are_taken_as_they_are(tmp_path: Path) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m")))
    rows = tuple(tuple(tokens_of(text)) for text in TEXTS)
    np.testing.assert_allclose(embed(engine, tokens=rows), embed(engine, *TEXTS), atol=near(1e-6))
    with pytest.raises(RequestError, match="9999") as caught:
        embed(engine, tokens=((1, 2), (3, 9999)))
    assert caught.value.param == "input[1][1]"


def test_an_input_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    folder = add_sentence_transformers(make_bert(tmp_path / "m"), max_tokens=20)
    engine = loaded(folder)
    assert embed(engine, "x" * 18).shape == (1, HIDDEN)
    with pytest.raises(RequestError, match=r"21 tokens.* 20 ") as caught:
        embed(engine, "a", "x" * 19)
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "input[1]"


def test_an_input_that_is_too_long_is_cut_off_where_that_is_asked_for(tmp_path: Path) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m"), max_tokens=20))
    assert planned(engine, "x" * 40, truncate=True).prompt_tokens == 20
    # The mark of the end stays.
    cut_off = embed(engine, "x" * 40, "ab", truncate=True)
    np.testing.assert_allclose(cut_off, embed(engine, "x" * 18, "ab"), atol=near(1e-6))
    with pytest.raises(RequestError, match=r"42 tokens.* 20 "):
        embed(engine, "x" * 40)


def test_a_text_that_cannot_fit_is_not_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_LEAST_REFUSED_CHARACTERS", 300)
    folder = add_sentence_transformers(make_bert(tmp_path / "m"), max_tokens=20)
    engine = loaded(folder)
    with pytest.raises(RequestError, match="301 characters") as caught:
        embed(engine, "a", "x" * 301)
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "input[1]"
    cut_off = embed(engine, "x" * 1000, truncate=True)
    np.testing.assert_allclose(cut_off, embed(engine, "x" * 18), atol=near(1e-6))


def test_an_input_that_is_too_long_loses_its_beginning_where_the_tokenizer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_LEAST_REFUSED_CHARACTERS", 300)
    folder = add_sentence_transformers(make_bert(tmp_path / "m"), max_tokens=20)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "truncation_side": "left"}))
    engine = loaded(folder)
    cut_off = embed(engine, "x" * 1000 + "y" * 18, truncate=True)
    np.testing.assert_allclose(cut_off, embed(engine, "y" * 18), atol=near(1e-6))


def test_texts_that_are_tokenized_apart_have_the_same_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m")))
    expected = embed(engine, *TEXTS)
    monkeypatch.setattr(encoder, "_CHARACTERS_AT_ONCE", 8)
    np.testing.assert_array_equal(embed(engine, *TEXTS), expected)
    with pytest.raises(RequestError) as caught:
        embed(engine, *TEXTS, "x" * 100)
    assert caught.value.param == f"input[{len(TEXTS)}]"


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 120))
def test_what_is_tokenized_at_once_is_all_in_order(lengths: list[int], limit: int) -> None:
    with mock.patch.object(encoder, "_CHARACTERS_AT_ONCE", limit):
        parts = [lengths[part] for part in encoder.tokenized_at_once(lengths)]
    assert [length for part in parts for length in part] == lengths
    assert all(part and (len(part) == 1 or sum(part) <= limit) for part in parts)


def test_the_context_can_be_configured_up_to_the_positions(tmp_path: Path) -> None:
    folder = add_sentence_transformers(make_bert(tmp_path / "m"), max_tokens=20)
    assert loaded(folder, context_length=POSITIONS).facts.context_tokens == POSITIONS
    with pytest.raises(LmxError, match="context_length"):
        loaded(folder, context_length=POSITIONS + 1)


def test_much_work_is_cut_into_pieces(tmp_path: Path) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m")))
    texts = tuple("x" * (1 + index % 40) for index in range(100))
    plan = planned(engine, *texts)
    assert plan.prompt_tokens == sum(len(text) + 2 for text in texts)
    pieces = list(plan.pieces)
    assert len(pieces) > 1
    rows: list[Any] = [cast("Any", piece).args[0].gi_frame.f_locals["rows"] for piece in pieces]
    for some in rows:
        assert len(some) * max(map(len, some)) <= CPU_PIECE_TOKENS
    vectors = embed(engine, *texts)
    np.testing.assert_allclose(vectors[3], vectors[43], atol=near(1e-5))


@pytest.mark.parametrize("make", [make_bert, make_qwen3, make_modernbert])
def test_a_long_text_pauses_behind_each_layer(tmp_path: Path, make: Any) -> None:
    engine = loaded(add_sentence_transformers(make(tmp_path / "m")))
    layers = 3 if make is make_modernbert else 2
    for text, expected in (("a", 0), ("x" * 40, layers)):
        (piece,) = planned(engine, text).pieces
        assert finished(piece)[1] == expected


@given(st.lists(st.integers(1, 50)), st.integers(1, 120))
def test_cut_loses_nothing_and_keeps_the_limit(lengths: list[int], limit: int) -> None:
    batches = cut(lengths, limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= limit or len(batch) == 1


def test_the_vectors_of_many_short_texts_fit_into_messages() -> None:
    batches = cut([2] * 4096, GPU_PIECE_TOKENS)
    for batch in batches:
        data = bytes(4 * 8192 * len(batch))
        assert len(encode(Vectors(1, tuple(batch), 8192, data))) < MAX_MESSAGE_BYTES
    assert len(batches) == 4


def test_tokenizing(tmp_path: Path) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m"), max_tokens=20))
    reply = tokenized(engine, "hi" * 30, pieces=True)
    assert reply.tokens == tuple(tokens_of("hi" * 30))
    assert reply.context_tokens == 20
    assert json.loads(reply.pieces_json)[:3] == ["[CLS]", "h", "i"]
    plain = tokenized(engine, "hi", add_special_tokens=False)
    assert plain.tokens == tuple(tokens_of("hi")[1:-1])
    back = engine.tasks.plan(Detokenize(7, "r", 9.0, tokens=tuple(tokens_of("h é"))))
    assert back == Detokenized(7, "[CLS]h é[SEP]")
    with pytest.raises(RequestError, match=r"tokens\[0\]"):
        engine.tasks.plan(Detokenize(7, "r", 9.0, tokens=(-1,)))
    with pytest.raises(RequestError, match="no chat template"):
        engine.tasks.plan(Tokenize(7, "r", 9.0, messages=({"role": "user", "content": "x"},)))


def test_what_is_no_embedding_is_refused(tmp_path: Path) -> None:
    engine = loaded(add_sentence_transformers(make_bert(tmp_path / "m")))
    assert engine.generator is None
    with pytest.raises(RequestError, match="/v1/embeddings") as caught:
        engine.tasks.plan(Rerank(7, "r", 9.0, "q", ("d",)))
    assert caught.value.param == "model"


def test_a_real_model_agrees_with_a_plain_forward_pass(minilm_dir: Path) -> None:
    engine = loaded(minilm_dir)
    texts = ("A cat sits on the mat.", "Naïve café 漢字", "hello " * 60)
    plain = PlainBert(minilm_dir)
    vectors = embed(engine, *texts)
    for text, vector in zip(texts, vectors, strict=True):
        tokens = tokenized(engine, text).tokens
        assert vector @ unit(plain.hidden(tokens).mean(0)) > 0.99999


def test_a_real_model_knows_what_is_alike(minilm_dir: Path) -> None:
    queries = ("How do I reset my password?", "What is the capital of France?", "I feel sick")
    answers = (
        "To change your login secret, open the account settings.",
        "Paris is the seat of the French government.",
        "You should see a doctor.",
    )
    vectors = embed(loaded(minilm_dir), *queries, *answers)
    assert (vectors[:3] @ vectors[3:].T).argmax(1).tolist() == [0, 1, 2]
