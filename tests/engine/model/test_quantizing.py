"""Quantizing of tiny models, and the measure of it."""

import errno
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.safetensors import read_tensors
from lmx.protocol.states import ModelKind, QuantizedBits
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.quantizing import convert
from lmx.worker.mlx.quantizing.convert import quantize_folder
from lmx.worker.mlx.quantizing.main import failure
from lmx.worker.mlx.quantizing.perplexity import perplexity
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_models import VOCABULARY, make_tiny_model
from tests.support.models.vlm_models import make_vlm_model


def quiet(_share: float) -> None:
    """Nobody looks at the progress."""


def names(folder: Path) -> set[str]:
    return {tensor.name for tensor in read_tensors(folder, ModelKind.CHAT)}


@pytest.mark.parametrize(
    ("kind", "bits", "make"),
    [
        ("llama", QuantizedBits.FOUR, make_text_model),
        ("qwen3", QuantizedBits.MIXED, make_text_model),
        ("llama", QuantizedBits.MIXED, make_tiny_model),
        ("qwen3_5", QuantizedBits.EIGHT, make_tiny_model),
    ],
)
def test_a_model_of_text(
    kind: str, bits: QuantizedBits, make: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    """The first two are of mlx-lm's classes, the others of mlx-vlm's."""
    source, target = make(tmp_path / "source", kind), tmp_path / "made"
    shares: list[float] = []
    width = quantize_folder(source, target, bits, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0
    # Float32 scales, and rows so short that a norm counts.
    assert 4.5 < width < (12.0 if bits is QuantizedBits.EIGHT else 7.0)
    assert any(name.endswith(".scales") for name in names(target))
    before, tokens = perplexity(source, quiet)
    after, _ = perplexity(target, quiet)
    # A random model is as good as a guess.
    assert 0.5 * VOCABULARY < before < 2 * VOCABULARY
    assert abs(after / before - 1) < 0.2
    assert tokens == 512, "no more than its context"


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("qwen3_moe", {"moe_intermediate_size": 64}, {"embed_tokens": 6, "lm_head": 6, "gate": 8}),
        ("llama", {"tie_word_embeddings": True}, {"embed_tokens": 6}),
    ],
)
def test_the_mixed_form_keeps_what_matters_most(
    kind: str, more: dict[str, Any], expected: dict[str, int], tmp_path: Path
) -> None:
    """Also what a model's class keeps in the other forms, such as the routers of experts."""
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    config = json.loads((make_text_model(tmp_path, kind) / "config.json").read_text()) | more
    model = module.Model(module.ModelArgs.from_dict(config))
    _, written = convert._quantized(model, config, QuantizedBits.MIXED, text=True)
    bits = {
        name.rpartition(".")[2]: each["bits"]
        for name, each in written["quantization"].items()
        if isinstance(each, dict)
    }
    assert bits.items() >= expected.items()
    assert bits["q_proj"] == 4 and (kind == "qwen3_moe" or bits["down_proj"] == 6)


def test_a_full_disk_is_said_as_such(tmp_path: Path) -> None:
    full = tmp_path / "model.safetensors"
    full.symlink_to("/dev/full")
    if not full.exists():
        pytest.skip("only Linux has /dev/full")
    with pytest.raises(RuntimeError) as caught:
        mx.save_safetensors(str(full), {"w": mx.zeros((1 << 16,))})
    assert failure(caught.value).code is ErrorCode.INSUFFICIENT_DISK
    assert failure(OSError(errno.ENOSPC, "full")).code is ErrorCode.INSUFFICIENT_DISK
    assert failure(OSError(errno.EACCES, "no")).code is ErrorCode.CONVERSION_FAILED


def test_the_measure_is_that_of_all_layers_at_once(tmp_path: Path) -> None:
    """Layers that let go of their weights compute what the model computes."""
    folder = make_tiny_model(tmp_path / "m", "llama")
    shares: list[float] = []
    measured, tokens = perplexity(folder, shares.append)
    assert len(shares) == 3
    checkpoint = open_checkpoint(folder)
    from lmx.worker.mlx.quantizing.passage import PASSAGE

    ids = mx.array([checkpoint.tokenizer.encode(PASSAGE)[:tokens]])
    forward = checkpoint.forward
    logits = forward.prompt(ids, forward.new_cache(), forward.embed(ids))[0, :-1]
    losses = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, ids[0, 1:, None], -1)[:, 0]
    assert measured == pytest.approx(mx.exp(losses.mean()).item(), rel=1e-4)


def test_a_model_that_runs_its_layers_twice_keeps_their_weights(tmp_path: Path) -> None:
    folder = make_text_model(tmp_path, "nanbeige")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_loops": 2}))
    # A random model is as good as a guess.
    assert 0.5 * VOCABULARY < perplexity(folder, quiet)[0] < 2 * VOCABULARY


def test_the_eyes_of_a_model_stay_as_they_are(tmp_path: Path) -> None:
    source, target = make_vlm_model(tmp_path / "source", "qwen2_5_vl"), tmp_path / "made"
    quantize_folder(source, target, QuantizedBits.FOUR, quiet)
    scales = {name for name in names(target) if name.endswith(".scales")}
    assert scales and not any("vision" in name or "visual" in name for name in scales)
    assert open_checkpoint(target).processor is not None
    assert perplexity(target, quiet)[0] > 1


def test_rows_that_no_group_fits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.worker.mlx.quantizing.convert.GROUP_WEIGHTS", 256)
    source = make_tiny_model(tmp_path / "source", "llama")
    with pytest.raises(OperationError, match="no weights of this model can be quantized"):
        quantize_folder(source, tmp_path / "made", QuantizedBits.FOUR, quiet)
