"""What is read of an adapter's folder, and what is said of one that can't be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.adapter import read_adapter_config

MLX = {"fine_tune_type": "lora", "num_layers": 8, "lora_parameters": {"rank": 8, "scale": 20.0}}
PEFT = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "bias": "none", "target_modules": ["q"]}


def written(folder: Path, config: Any, weights: str = "adapters") -> Path:
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "adapter_config.json").write_text(text)
    (folder / f"{weights}.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("config", "weights", "scale", "dora"),
    [
        (MLX, "adapters", 20.0, False),
        ({**MLX, "fine_tune_type": "dora"}, "adapters", 20.0, True),
        ({"lora_parameters": {"scale": 2}}, "adapters", 2.0, False),  # Of an early mlx-lm.
        (PEFT, "adapter_model", 2.0, False),
        ({**PEFT, "use_rslora": True}, "adapter_model", 8.0, False),
        ({**PEFT, "use_dora": True, "modules_to_save": None}, "adapter_model", 2.0, True),
    ],
)
def test_both_forms_are_read(
    tmp_path: Path, config: Any, weights: str, scale: float, dora: bool
) -> None:
    found = read_adapter_config(written(tmp_path, config, weights))
    assert (found.scale, found.dora, found.peft) == (scale, dora, "peft_type" in config)
    assert found.weights == tmp_path / f"{weights}.safetensors"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**MLX, "fine_tune_type": "full"}, "mlx_lm.fuse"),
        ({**MLX, "fine_tune_type": "ia3"}, "'ia3'; lmx serves lora, dora"),
        ({**MLX, "lora_parameters": {"rank": 8}}, "no lora_parameters.scale"),
        ({**MLX, "lora_parameters": {"scale": float("nan")}}, "no lora_parameters.scale"),
        ({**PEFT, "peft_type": "PREFIX_TUNING"}, "'PREFIX_TUNING'; lmx serves LORA"),
        ({**PEFT, "modules_to_save": ["lm_head"]}, "sets modules_to_save"),
        ({**PEFT, "bias": "all"}, "sets bias"),
        ({**PEFT, "r": 0}, "no r and lora_alpha"),
        ({**PEFT, "lora_alpha": 10**400}, "no r and lora_alpha"),
        (PEFT, "no adapter_model.safetensors"),
        ([], "is no JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_adapter_is_said(tmp_path: Path, config: Any, words: str) -> None:
    with pytest.raises(OperationError) as caught:
        read_adapter_config(written(tmp_path, config))
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID
    assert words in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_a_folder_that_is_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="name a folder that `mlx_lm"):
        read_adapter_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OperationError, match="a whole model and no adapter"):
        read_adapter_config(tmp_path)
    with pytest.raises(OperationError, match="there is no folder"):
        read_adapter_config(tmp_path / "nowhere")
