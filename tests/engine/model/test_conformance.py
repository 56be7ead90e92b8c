"""Every type that mlx-lm knows, as ``mlx_lm.convert`` saves it, is right in lmx: alone, in company
and after a prefix, also in 4 bits. So is the text of the types with eyes that mlx-vlm's classes
serve, and of those that mlx-vlm alone knows. What is counted for their caches is what they take.

Those that are not right are listed: one that is mended, or another, fails a test. So are those that
are not examined: a type that a library has added fails a test. `make test-all` tries one or two for
each way in which the two libraries don't agree; `make conformance` all of them.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.errors import OperationError
from lmx.worker.mlx.model.inexact import INEXACT
from lmx.worker.mlx.model.library import open_checkpoint
from tests.support.models.text_models import CONFIGS, make_text_model, reference_logits
from tests.support.models.tiny_models import make_tiny_model
from tests.support.models.vlm_models import TEXT_ALONE, make_vlm_model
from tests.support.references.model_table import PAGE, bits_cell, cells, on_the_page
from tests.support.references.not_examined import NOT_EXAMINED, lines, not_examined
from tests.support.rigs.conformance import (
    FOLLOWING,
    PROMPT,
    WITH_EYES,
    Conformance,
    FewBits,
    examine,
    examine_few_bits,
    examine_seeing,
    off_in_company,
)
from tests.support.rigs.engine_rig import functions_of_mlx

pytestmark = pytest.mark.long

MOST_OFF = 1e-3
LEAST_COUNTED, MOST_COUNTED = 0.98, 1.1
"""How many times as much as they take may be counted for the caches."""

VLM_KNOWN_WRONG = {"deepseek_v4": INEXACT["deepseek_v4"]}
OVERCOUNTED = {
    "hy_v4": "its caches may double when they grow",
    "kimi_vl": "mlx-vlm's class keeps all heads' keys and values, mlx-lm's does not",
}

MISCOUNTED = {
    "mllama": 1.33,  # Layers that look at pictures keep nothing of a text, and of a picture much.
    "molmo_point": 2.0,  # Its class makes float16 of float32; weights of 16 bits are counted right.
}
"""How many times as much as they take is counted."""

NOT_QUANTIZED = {"afm7": "in mlx-lm 0.32.2 its fused layers know nothing of a mode"}
"""Those that ``mlx_lm.convert`` fails to quantize."""

WRONG_IN_VLM = ("internlm2", "lfm2_moe")
BETTER_BY_VLM = ("mamba", "qwen3_5", "qwen3_5_moe")
WINDOWED = (
    *("dots1", "gemma2", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    "starcoder2",
)
MENDED = ("phi3small", "plamo3")
SEEING_MENDED = ("mllama", "paddleocr_vl", "paligemma")
QUICK = (
    *("bailing_hybrid", *WRONG_IN_VLM, "gemma3n", "kimi_vl", *MENDED),
    *("llama", "mamba", "qwen3_5"),
)
VLM_QUICK = ("hy_v4", "qwen3_5_text")
FOUR_BITS_QUICK = ("deepseek_v3", "qwen3_next")
SEEING_QUICK = (*SEEING_MENDED, "gemma4", "qwen3_omni_moe")


def conformance(folder: Path, model_type: str, bits: int | None = None) -> Conformance:
    make_text_model(folder, model_type, bits=bits)
    with functions_of_mlx():
        reference = reference_logits(folder, PROMPT, FOLLOWING)
    return examine(folder, reference)


FEW_BITS_QUICK = ("bailing_hybrid", "gemma3_text", "gpt_oss")
"""One with states, one with windows, and one whose attention reads expanded numbers."""


def wrong(found: Conformance | FewBits) -> list[str]:
    offs = {"in company": found.batched_off, "after a prefix": found.prefix_off}
    if isinstance(found, Conformance):
        offs |= {
            "alone": found.alone_off,
            "after drafts": found.drafted_off,
            "in turns": found.in_turns_off,
        }
    return [name for name, off in offs.items() if off is not None and not off < MOST_OFF]


def check_page(model_type: str, found: Conformance, *, sees: bool = False) -> None:
    reported = cells(model_type, found, sees=sees)
    assert reported.items() <= on_the_page(model_type, sees=sees).items(), "make models-page"


def check_counted(found: Conformance | FewBits, model_type: str, *, sees: bool = False) -> None:
    counted = found.counted_bytes / found.held_bytes
    if isinstance(found, Conformance) and model_type in MISCOUNTED:
        assert counted == pytest.approx(MISCOUNTED[model_type], abs=0.01), found
    elif model_type not in MISCOUNTED and (sees or model_type not in OVERCOUNTED):
        assert LEAST_COUNTED <= counted <= MOST_COUNTED, found


def of_all(names: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """Return parameters for a test that `make test-all` has only the ``quick`` ones of."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.conformance)
        for name in sorted(names)
    ]


@pytest.mark.parametrize("model_type", of_all(CONFIGS, QUICK))
def test_a_type_is_right(tmp_path: Path, model_type: str) -> None:
    found = conformance(tmp_path, model_type)
    assert not wrong(found), found
    assert found.library == ("mlx-vlm" if model_type in BETTER_BY_VLM else "mlx-lm")
    check_page(model_type, found)
    check_counted(found, model_type)


@pytest.mark.parametrize("model_type", of_all(WINDOWED, ("gemma2",)))
def test_windows_that_lmx_gives_a_class_are_right(tmp_path: Path, model_type: str) -> None:
    """Which tokens they have is compared with transformers' (``make reference``)."""
    folder = make_text_model(tmp_path, model_type)
    file = folder / "config.json"
    windows = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2}
    file.write_text(json.dumps(json.loads(file.read_text()) | windows))
    found = examine(folder, None)
    assert not wrong(found), found
    assert found.prefix == "ends"
    assert LEAST_COUNTED <= found.counted_bytes / found.held_bytes <= MOST_COUNTED, found


@pytest.mark.parametrize("model_type", of_all(WITH_EYES, SEEING_QUICK))
def test_the_text_of_a_type_with_eyes_is_right(tmp_path: Path, model_type: str) -> None:
    found = examine_seeing(tmp_path, model_type)
    assert not wrong(found), found
    assert found.library == "mlx-vlm"
    check_page(model_type, found, sees=True)
    check_counted(found, model_type, sees=True)


@pytest.mark.parametrize("model_type", of_all(TEXT_ALONE, VLM_QUICK))
def test_a_type_that_mlx_vlm_alone_knows_is_right(tmp_path: Path, model_type: str) -> None:
    found = examine(make_vlm_model(tmp_path, model_type), None)
    assert bool(wrong(found)) == (model_type in VLM_KNOWN_WRONG), found
    assert found.library == "mlx-vlm"
    check_page(model_type, found)
    check_counted(found, model_type)


def test_rows_that_are_kept_apart_would_be_wrong_together(tmp_path: Path) -> None:
    """By their names: the trial of the load is too short for it to show."""
    lm = make_text_model(tmp_path / "lm", "minimax_m3_vl")
    vlm = make_vlm_model(tmp_path / "vlm", "minimax_m3")
    for folder in (lm, vlm):
        assert off_in_company(folder) > MOST_OFF, "it is mended: it may batch again"


def test_each_type_of_the_libraries_is_examined_or_reported() -> None:
    """A type that a raised pin adds, or removes, fails here."""
    assert {name: set(types) for name, types in NOT_EXAMINED.items()} == not_examined()
    reported = [line for line in PAGE.read_text().splitlines() if line.startswith("| mlx-")]
    assert reported == lines(), "make models-page"


@pytest.mark.parametrize(
    "model_type", of_all(CONFIGS.keys() - NOT_QUANTIZED.keys(), FOUR_BITS_QUICK)
)
def test_a_quantized_type_is_right(tmp_path: Path, model_type: str) -> None:
    """In 4 bits, as most are fetched, against its library's own logits of the same bits."""
    found = conformance(tmp_path, model_type, 4)
    assert not wrong(found), found


@pytest.mark.parametrize("model_type", NOT_QUANTIZED)
def test_a_type_that_cannot_be_quantized(tmp_path: Path, model_type: str) -> None:
    with pytest.raises(TypeError, match="mode"):
        make_text_model(tmp_path, model_type, bits=4)


def test_a_head_that_is_the_embeddings(tmp_path: Path) -> None:
    """mlx-vlm 0.7.10 is off by 0.69 with such a model of InternLM 2."""
    folder = make_text_model(tmp_path, "internlm2", tied=True)
    assert not any("output" in name for name in mx.load(str(folder / "model.safetensors")))
    found = examine(folder, reference_logits(folder, PROMPT, FOLLOWING))
    assert not wrong(found), found
    assert found.library == "mlx-lm"


@pytest.mark.parametrize("model_type", of_all({*CONFIGS, *TEXT_ALONE}, FEW_BITS_QUICK))
def test_keys_and_values_in_few_bits(tmp_path: Path, model_type: str) -> None:
    """Rows in company and after a prefix are as alone and cold, and what is counted is what they
    take."""
    found = examine_few_bits(tmp_path, model_type)
    for each in (found or {}).values():
        assert not wrong(each), each
        check_counted(each, model_type)
    assert bits_cell(found) == on_the_page(model_type)["kv_bits"], "make models-page"


@pytest.mark.parametrize("model_type", of_all(WITH_EYES, ()))
def test_keys_and_values_in_few_bits_of_a_type_with_eyes(tmp_path: Path, model_type: str) -> None:
    found = examine_few_bits(tmp_path, model_type, sees=True)
    for each in (found or {}).values():
        assert not wrong(each), each
        check_counted(each, model_type, sees=True)
    assert bits_cell(found) == on_the_page(model_type, sees=True)["kv_bits"], "make models-page"


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.conformance)])
@pytest.mark.parametrize("model_type", ["gemma3_text", "gemma3"])
def test_a_quantized_gemma_3_whose_head_is_its_embeddings(
    tmp_path: Path, model_type: str, bits: int
) -> None:
    assert not wrong(conformance(tmp_path, model_type, bits))


def test_what_mlx_vlm_saved_is_its_own(tmp_path: Path) -> None:
    """Its names of the weights are others."""
    assert open_checkpoint(make_tiny_model(tmp_path, "qwen3")).library == "mlx-vlm"


@pytest.mark.parametrize(
    ("field", "value", "reported"),
    [
        ("model_type", "nosuch", "no model of the type 'nosuch'"),
        ("num_hidden_layers", 7, "not those that its config.json describes"),
        ("hidden_size", None, "can't be loaded as a model of the type 'llama'"),
    ],
)
def test_what_cannot_load_is_reported_in_words(
    tmp_path: Path, field: str, value: object, reported: str
) -> None:
    folder = make_text_model(tmp_path, "llama")
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {field: value}
    file.write_text(json.dumps({name: each for name, each in config.items() if each is not None}))
    with pytest.raises(OperationError, match=reported) as caught:
        open_checkpoint(folder)
    assert "choose" in caught.value.message


def test_every_type_that_is_refused_as_inexact_is_examined() -> None:
    assert VLM_KNOWN_WRONG == INEXACT
