"""How an embedding or rerank model is used, as its files tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.worker.mlx.encoders.folder import EncoderSettings, read_encoder_settings


def settings(folder: Path, **files: Any) -> EncoderSettings:
    for name, content in {"config": {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return read_encoder_settings(folder)


def test_without_other_files_everything_has_a_default(tmp_path: Path) -> None:
    assert settings(tmp_path) == EncoderSettings(None, None, None, normalize=True, sigmoid=True)


@pytest.mark.parametrize(
    ("config", "trained", "positions", "context"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 256, 512, 256),
        ({"model_type": "bert", "max_position_embeddings": 512}, None, 512, 512),
        # More than there are positions for: some published files say so.
        ({"model_type": "bert", "max_position_embeddings": 512}, 8192, 512, 512),
        (
            {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1},
            None,
            512,
            512,
        ),
        ({"model_type": "bert"}, 128, None, 128),
    ],
)
def test_lengths(
    tmp_path: Path, config: Any, trained: int | None, positions: int | None, context: int
) -> None:
    found = settings(tmp_path, config=config, sentence_bert_config={"max_seq_length": trained})
    assert (found.position_tokens, found.context_tokens) == (positions, context)


@pytest.mark.parametrize(
    ("modules", "normalize"),
    [
        ([{"type": "sentence_transformers.models.Normalize"}], True),
        (
            [{"type": "sentence_transformers.modules.Normalize"}],
            True,
        ),
        ([{"type": "sentence_transformers.models.Pooling"}], False),
        ({}, True),
    ],
)
def test_normalizing(tmp_path: Path, modules: Any, normalize: bool) -> None:
    assert settings(tmp_path, modules=modules).normalize is normalize


@pytest.mark.parametrize(
    ("config", "sigmoid"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, True),
        ({"sentence_transformers": {"version": "5"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
    ],
)
def test_scores(tmp_path: Path, config: Any, sigmoid: bool) -> None:
    assert settings(tmp_path, config=config).sigmoid is sigmoid


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(OperationError, match=r"modules\.json is not JSON") as caught:
        read_encoder_settings(tmp_path)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID
