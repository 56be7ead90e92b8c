"""Every type that mlx-lm knows, as ``mlx_lm.convert`` saves it, is right in lmx: alone, in company
and after a prefix. Those that are not are listed: one that is mended, or another, fails a test.

`make test` tries those that the two libraries don't agree about; `make conformance` all of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance import FOLLOWING, PROMPT, Conformance, examine
from model_table import PAGE, line
from text_models import CONFIGS, make_text_model, reference_logits
from tiny_models import make_tiny_model

from lmx.protocol.errors import OperationError
from lmx.worker.mlx.model.library import open_checkpoint

pytestmark = pytest.mark.engine

MOST_OFF = 1e-3

KNOWN_WRONG = {
    "plamo3": "in mlx-lm 0.32.2 its window is a token longer within a chunk than between chunks",
}

UNKNOWN_TO_VLM = (
    *("bailing_hybrid", "bailing_moe_v3", "gear", "gptj", "nanbeige", "olmo_hybrid", "plamo3"),
    "talkie",
)
WRONG_IN_VLM = ("internlm2", "internlm3", "lfm2_moe", "minicpm3")
TEXT_OF_MORE = ("gemma3", "gemma3n", "kimi_vl", "lfm2-vl", "llama4", "mistral3")
BETTER_BY_VLM = ("mamba", "qwen3_5", "qwen3_5_moe")
QUICK = (*UNKNOWN_TO_VLM, *WRONG_IN_VLM, *TEXT_OF_MORE, *BETTER_BY_VLM, "gemma3_text", "llama")


def conformance(folder: Path, model_type: str, bits: int | None = None) -> Conformance:
    make_text_model(folder, model_type, bits=bits)
    return examine(folder, reference_logits(folder, PROMPT, FOLLOWING))


def wrong(found: Conformance) -> list[str]:
    offs = {
        "alone": found.alone_off,
        "in company": found.batched_off,
        "after a prefix": found.prefix_off,
    }
    return [name for name, off in offs.items() if off is not None and not off < MOST_OFF]


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.conformance)
        for name in sorted(CONFIGS)
    ],
)
def test_a_type_is_right(tmp_path: Path, model_type: str) -> None:
    found = conformance(tmp_path, model_type)
    assert bool(wrong(found)) == (model_type in KNOWN_WRONG), found
    assert found.library == ("mlx-vlm" if model_type in BETTER_BY_VLM else "mlx-lm")
    assert line(model_type, found) in PAGE.read_text().splitlines(), "make models-page"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("model_type", ["gemma3_text", "gemma3"])
def test_a_quantized_gemma_3_whose_head_is_its_embeddings(
    tmp_path: Path, model_type: str, bits: int
) -> None:
    assert not wrong(conformance(tmp_path, model_type, bits))


def test_what_mlx_vlm_saved_is_its_own(tmp_path: Path) -> None:
    """Its names of the weights are others."""
    assert open_checkpoint(make_tiny_model(tmp_path, "qwen3")).library == "mlx-vlm"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("model_type", "nosuch", "no model of the type 'nosuch'"),
        ("num_hidden_layers", 7, "not those that its config.json describes"),
        ("hidden_size", None, "can't be loaded as a model of the type 'llama'"),
    ],
)
def test_what_cannot_load_is_told_in_words(
    tmp_path: Path, field: str, value: object, told: str
) -> None:
    folder = make_text_model(tmp_path, "llama")
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {field: value}
    file.write_text(json.dumps({name: each for name, each in config.items() if each is not None}))
    with pytest.raises(OperationError, match=told) as caught:
        open_checkpoint(folder)
    assert "choose" in caught.value.message
