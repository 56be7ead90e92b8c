"""What the worker reads of a model folder is what the supervisor read of it."""

import json
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.worker.mlx.encoders.folder import read_encoder_settings
from lmx.worker.mlx.model.folder import read_folder


@pytest.mark.parametrize(
    "section", ["thinker_config", "text_config", "language_config", "llm_config"]
)
def test_a_nested_context_is_the_same_for_all(section: str, tmp_path: Path) -> None:
    config = {"model_type": "x", section: {"max_position_embeddings": 77}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint_config(tmp_path).context_tokens == 77
    assert read_folder(tmp_path).context_tokens == 77
    assert read_encoder_settings(tmp_path).position_tokens == 77


@pytest.mark.parametrize("content", [b"[" * 200_000, b"{", None], ids=["deep", "cut", "a folder"])
def test_generation_defaults_that_cannot_be_read_are_named(
    content: bytes | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "generation_config.json"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(OperationError, match=file.name) as caught:
        read_folder(tmp_path)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID
