"""Folders as other tools write them, against the same weights in the libraries' own form."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.chat_templates import deepseek_v32

from lmx.protocol.errors import OperationError
from lmx.protocol.host.regular_file import read_regular
from lmx.protocol.models import checkpoint
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.memory.estimate import read_weights
from lmx.worker.mlx.model import readable
from lmx.worker.mlx.model.inexact import INEXACT
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.load import load_model
from lmx.worker.mlx.model.passes import report_passes_to
from lmx.worker.mlx.model.patches import mlx_vlm as mlx_vlm_patches
from lmx.worker.mlx.model.readable import FolderChanges
from lmx.worker.templates import environment
from tests.support.models.text_models import (
    make_text_model,
    reference_logits,
    save_with_8_bit_floats,
)
from tests.support.rigs.engine_rig import spec_of

INDEX = "model.safetensors.index.json"
LINEAR = {"rope_type": "linear", "factor": 4.0}


def logits(folder: Path, changes: FolderChanges | None = None) -> np.ndarray[Any, Any]:
    forward = open_checkpoint(folder, changes=changes).forward
    tokens = mx.array([list(range(1, 80))], mx.int32)
    out = forward.prompt(tokens, forward.new_cache(), forward.embed(tokens))
    out = out[0] if isinstance(out, tuple) else out
    return np.array(out.astype(mx.float32)).reshape(-1)[-288:]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def base(kind: str) -> Path:
        if kind not in made:
            made[kind] = make_text_model(tmp_path_factory.mktemp(kind) / kind, kind)
        return made[kind]

    return base


def changed(base: Path, folder: Path, *gone: str, **config: Any) -> Path:
    shutil.copytree(base, folder)
    file = folder / "config.json"
    values = {k: v for k, v in json.loads(file.read_text()).items() if k not in gone}
    file.write_text(json.dumps(values | config))
    return folder


@pytest.mark.parametrize("kind", ["llama", "qwen2", "olmo2", "gemma3_text"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_type": "default"}),
        ({"rope_theta": 1e4, "rope_scaling": LINEAR}, {"rope_theta": 1e4, **LINEAR}),
    ],
    ids=["theta", "scaling"],
)
def test_both_ways_to_write_a_rope_compute_the_same(
    bases: Callable[[str], Path], tmp_path: Path, kind: str, old: Any, new: Any
) -> None:
    if kind == "gemma3_text":
        new = {"full_attention": new, "sliding_attention": {"rope_theta": 1e4}}
    gone = ("rope_theta", "rope_scaling", "rope_local_base_freq")
    first = changed(bases(kind), tmp_path / "old", *gone, **old)
    second = changed(bases(kind), tmp_path / "new", *gone, rope_parameters=new)
    plain = changed(bases(kind), tmp_path / "plain", *gone)
    expected = logits(first)
    assert np.array_equal(logits(second), expected)
    assert np.abs(logits(plain) - expected).max() > 1e-3, "or the keys say nothing"


def test_a_rope_that_the_class_ignores_is_refused_in_words(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed(bases("glm4"), tmp_path / "g", rope_scaling=LINEAR)
    with pytest.raises(OperationError, match="allow_inexact"):
        open_checkpoint(folder)
    assert open_checkpoint(folder, changes=FolderChanges(allow_inexact=True)).library == "mlx-lm"


def test_only_the_files_that_the_index_names_are_loaded(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("llama")
    expected = logits(base)
    weights = mx.load(str(base / "model.safetensors"))
    assert isinstance(weights, dict)
    folder = changed(base, tmp_path / "stray")
    zeros = {name: mx.zeros_like(value) for name, value in weights.items()}
    (folder / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(weights, "model.safetensors")})
    )
    for name in ("model-4bit.safetensors", "zz.safetensors", "consolidated.safetensors"):
        mx.save_safetensors(str(folder / name), zeros)
    assert np.array_equal(logits(folder), expected)
    # Without an index nobody can tell which file is meant.
    (folder / INDEX).unlink()
    with pytest.raises(OperationError, match=r"model-4bit.safetensors and model.safetensors"):
        open_checkpoint(folder)


def test_a_stale_index_is_left_out_and_a_missing_file_is_named(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("llama")
    names = list(mx.load(str(base / "model.safetensors")))
    folder = changed(base, tmp_path / "stale")
    shards = [f"model-0000{1 + place % 2}-of-00002.safetensors" for place in range(len(names))]
    (folder / INDEX).write_text(json.dumps({"weight_map": dict(zip(names, shards, strict=True))}))
    assert np.array_equal(logits(folder), logits(base))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(OperationError, match=r"no model-00002-of-00002\.safetensors"):
        open_checkpoint(folder)


def test_a_byte_order_mark_is_read_over(bases: Callable[[str], Path], tmp_path: Path) -> None:
    folder = changed(bases("llama"), tmp_path / "bom")
    file = folder / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert np.array_equal(logits(folder), logits(bases("llama")))


def test_what_a_killed_worker_left_is_removed(
    bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait(180)
    left, used = (tmp_path / f"lmx-folder-{pid}-x" for pid in (ended.pid, os.getppid()))
    for folder in (left, used):
        folder.mkdir()
        (folder / "weights").symlink_to(bases("llama") / "config.json")
    open_checkpoint(bases("llama"), changes=FolderChanges("{{ messages }}"))
    assert (left.exists(), used.exists()) == (False, True)
    assert len([*tmp_path.glob(f"lmx-folder-{os.getpid()}-*")]) == 1
    assert (bases("llama") / "config.json").exists()


def test_templates_and_the_tokenizer_s_values_can_be_replaced(
    bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = changed(bases("llama"), tmp_path / "own")
    (folder / "chat_template.jinja").write_text("its own")
    file = tmp_path / "other.jinja"
    file.write_text("{{ messages }} of a file")
    for given in ("{{ messages }} of a file", str(file), "~/other.jinja"):
        changes = FolderChanges(given, {"eos_token": "<x>"})
        tokenizer = open_checkpoint(folder, changes=changes).tokenizer
        assert tokenizer.chat_template == "{{ messages }} of a file"
        assert tokenizer.eos_token == "<x>"
    assert open_checkpoint(folder).tokenizer.chat_template == "its own"
    for missing in ("nowhere.jinja", "~no-such-user/t.jinja"):
        with pytest.raises(OperationError, match=f"chat_template: {missing} can't be read"):
            open_checkpoint(folder, changes=FolderChanges(missing))


def test_a_template_that_is_named_says_what_the_librarys_program_says(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed(bases("llama"), tmp_path / "v32")
    file = folder / "tokenizer_config.json"
    named = {"chat_template_type": "deepseek_v32", "chat_template": "its own"}
    file.write_text(json.dumps(json.loads(file.read_text()) | named))
    loaded = load_model(spec_of(folder), lambda *_: None)
    assert (loaded.facts.converses, loaded.facts.tool_parser) == (True, "deepseek_v32")
    template = loaded.tokenizer.chat_template
    arguments = {"a": "x\n<y>", "b": [1, "é"], "c": None, "d": 1.5, "e": True}
    calls = [{"function": {"name": name, "arguments": arguments}} for name in ("f", "g")]
    function = {"name": "f", "description": "{ü}", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}] * 2
    talk: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hé"},
        {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": calls},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "so", "reasoning_content": "done"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "ah", "tool_calls": calls[:1]},
        {"role": "tool", "content": "3"},
    ]
    for count in (1, 2, 5, 6, 7, 9):
        for shown in (None, tools):
            for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
                messages = talk[:count]
                given = {"messages": messages, "tools": shown, "add_generation_prompt": True}
                theirs = deepseek_v32.apply_chat_template(
                    [_with_text_arguments(message) for message in messages],
                    add_generation_prompt=True, tools=shown, **variables,
                )  # fmt: skip
                assert environment.render(template, given | variables) == theirs
    kept = open_checkpoint(folder, changes=FolderChanges("{{ messages }} of lmx.yaml"))
    assert kept.tokenizer.chat_template == "{{ messages }} of lmx.yaml"


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | {"tool_calls": calls}


def test_what_is_known_to_be_wrong_does_not_answer_silently(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed(bases("llama"), tmp_path / "wrong", model_type="deepseek_v4")
    with pytest.raises(OperationError, match=r"computed wrongly.*allow_inexact: true"):
        load_model(replace(spec_of(folder), allow_inexact=False), lambda *_: None)


def test_what_is_wrong_and_allowed_is_remarked(
    bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remarks(folder: Path) -> tuple[str, ...]:
        return load_model(spec_of(folder), lambda *_: None).facts.remarks

    assert remarks(bases("llama")) == ()
    ignored = changed(bases("llama"), tmp_path / "ignored", attention_multiplier=2.0)
    (remark,) = remarks(ignored)
    assert remark.startswith("config.json sets attention_multiplier to 2.0, which mlx-lm's class")
    (remark,) = remarks(changed(bases("glm4"), tmp_path / "rope", rope_scaling=LINEAR))
    assert "scales its rotary embeddings (linear)" in remark
    monkeypatch.setitem(INEXACT, "llama", "its reason")
    (remark,) = remarks(bases("llama"))
    assert remark.endswith("are computed wrongly by the engine's library: its reason.")


def test_config_json_is_read_once(
    bases: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def noted(path: Path, limit_bytes: int) -> bytes:
        read.append(path)
        return read_regular(path, limit_bytes)

    for module in (checkpoint, readable):
        monkeypatch.setattr(module, "read_regular", noted)
    load_model(spec_of(bases("llama")), lambda *_: None)
    assert [path.name for path in read].count("config.json") == 1


def test_experts_are_chosen_as_the_weights_say(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("ernie4_5_moe")
    with pytest.raises(OperationError, match=r"e_score_correction_bias.*allow_inexact: true"):
        open_checkpoint(base)
    dropped = logits(base, FolderChanges(allow_inexact=True))
    for name, correction in (("none", [0.0] * 4), ("some", [9.0, 0.0, 0.0, 8.0])):
        folder = changed(base, tmp_path / name)
        file = folder / "model.safetensors"
        weights = mx.load(str(file))
        assert isinstance(weights, dict)
        layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        for layer in range(layers):
            key = f"model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"
            weights[key] = mx.array([correction])
        # The heads for further tokens count their layers by themselves.
        key = "model.mtp_block.9.mlp.moe_statics.e_score_correction_bias"
        weights[key] = mx.array([[0.0, 7.0, 7.0, 0.0]])
        mx.save_safetensors(str(file), weights)
        found = logits(folder)
        assert (np.abs(found - dropped).max() < 1e-5) == (name == "none")


def test_gpt_oss_is_read_under_transformers_names(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("gpt_oss")
    folder = changed(base, tmp_path / "theirs")
    file = folder / "model.safetensors"
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    for name in [key for key in weights if ".experts.gate_proj.weight" in key]:
        experts = name.removesuffix("gate_proj.weight")
        for end, theirs in ((".weight", ""), (".bias", "_bias")):
            gate = weights.pop(f"{experts}gate_proj{end}")
            up = weights.pop(f"{experts}up_proj{end}")
            both = mx.stack([gate, up], axis=2).reshape(gate.shape[0], -1, *gate.shape[2:])
            down = weights.pop(f"{experts}down_proj{end}")
            if end == ".weight":
                both, down = both.swapaxes(-1, -2), down.swapaxes(-1, -2)
            weights[f"{experts}gate_up_proj{theirs}"] = both
            weights[f"{experts}down_proj{theirs}"] = down
    mx.save_safetensors(str(file), weights)
    assert np.abs(logits(folder) - logits(base)).max() < 1e-5


@pytest.mark.parametrize("kind", ["ministral3", "mistral3"])
def test_ministral_3_is_read_from_8_bit_floats(
    bases: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    coded = changed(bases("ministral3"), tmp_path / "coded")
    nested = "language_model." if kind == "mistral3" else ""
    if nested:
        config = json.loads((coded / "config.json").read_text())
        (coded / "config.json").write_text(json.dumps({"model_type": kind, "text_config": config}))
    weights = mx.load(str(coded / "model.safetensors"))
    assert isinstance(weights, dict)
    weights = {nested + name: value.astype(mx.bfloat16) for name, value in weights.items()}
    plain = changed(coded, tmp_path / "plain")
    rounded, codes = dict(weights), dict(weights)
    for name in [key for key in weights if key.endswith("_proj.weight")]:
        scale = mx.max(mx.abs(weights[name])).astype(mx.bfloat16) / 448
        codes[name] = mx.to_fp8(weights[name] / scale)
        codes[f"{name}_scale_inv"] = scale
        codes[f"{name.removesuffix('weight')}activation_scale"] = scale
        rounded[name] = mx.from_fp8(codes[name], mx.bfloat16) * scale
    mx.save_safetensors(str(plain / "model.safetensors"), rounded)
    save_with_8_bit_floats(coded / "model.safetensors", codes)
    changed(coded, tmp_path / "fp8", quantization_config={"quant_method": "fp8"})
    assert np.array_equal(logits(tmp_path / "fp8"), logits(plain))
    assert open_checkpoint(tmp_path / "fp8").library == "mlx-lm"


@pytest.mark.parametrize(
    ("kind", "block"),
    [("ministral3", None), ("qwen2", 128), ("deepseek_v3", 128), ("glm_moe_dsa", 128),
     ("mimo_v2_flash", 128), ("minimax_m2", 128), ("mistral4", 128)],
)  # fmt: skip
def test_8_bit_floats_take_what_is_estimated(
    bases: Callable[[str], Path], tmp_path: Path, kind: str, block: int | None
) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": block and [block, block]}
    folder = changed(bases(kind), tmp_path / "fp8", quantization_config=quantization)
    file = folder / "model.safetensors"
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    weights = {name: value.astype(mx.bfloat16) for name, value in weights.items()}
    for name in [key for key in weights if key.endswith("_proj.weight")]:
        if (weight := weights[name]).ndim == 2:
            blocks = [-(-size // block) for size in weight.shape] if block else []
            weights[name] = mx.to_fp8(weight)
            weights[f"{name}_scale_inv"] = mx.ones(blocks)
    save_with_8_bit_floats(file, weights)
    loaded = [array for _, array in tree_flatten(open_checkpoint(folder).model.parameters())]
    loaded_bytes = sum(array.nbytes for array in loaded)
    estimated = read_weights(folder, ModelKind.CHAT, read_checkpoint_config(folder))
    assert estimated.total_bytes == pytest.approx(loaded_bytes, rel=0.01)
    assert any(array.dtype == mx.uint32 for array in loaded) == (kind == "qwen2")


def test_8_bit_floats_that_are_decoded_at_once_are_progress(
    bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_vlm_patches, "_LARGE_BYTES", 0)
    plain = changed(bases("qwen2"), tmp_path / "plain")
    quantization = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    coded = changed(plain, tmp_path / "fp8", quantization_config=quantization)
    weights = mx.load(str(plain / "model.safetensors"))
    assert isinstance(weights, dict)
    weights = {name: value.astype(mx.bfloat16) for name, value in weights.items()}
    codes = dict(weights)
    names = [key for key in weights if key.endswith("_proj.weight")]
    for name in names:
        codes[name] = mx.to_fp8(weights[name])
        codes[f"{name}_scale"] = mx.ones((weights[name].shape[0], 1), mx.bfloat16)
        weights[name] = mx.from_fp8(codes[name], mx.bfloat16)
    mx.save_safetensors(str(plain / "model.safetensors"), weights)
    save_with_8_bit_floats(coded / "model.safetensors", codes)
    noted: list[str] = []
    with report_passes_to(lambda: noted.append("")):
        model = open_checkpoint(coded).model
    assert len(noted) >= len(names)
    loaded_bytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    estimated = read_weights(coded, ModelKind.CHAT, read_checkpoint_config(coded))
    assert estimated.total_bytes == pytest.approx(loaded_bytes, rel=0.05)
    assert np.array_equal(logits(coded), logits(plain))


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_ropes_that_a_class_leaves_plain_are_scaled(
    bases: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    folder = changed(bases(kind), tmp_path / "scaled", rope_scaling=LINEAR)
    forward = open_checkpoint(folder).forward
    assert {layer.self_attn.rope.scale for layer in forward.language_model.layers} == {0.25}
    assert np.abs(logits(folder) - logits(bases(kind))).max() > 1e-3


def test_factors_for_long_texts_are_remarked(bases: Callable[[str], Path], tmp_path: Path) -> None:
    longrope = {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 8, "long_factor": [1.0 + place for place in range(8)],
    }  # fmt: skip
    folder = changed(bases("llama"), tmp_path / "long", rope_scaling=longrope)
    (remark,) = open_checkpoint(folder).remarks
    assert remark.startswith("Texts of up to 128 tokens")
    assert open_checkpoint(folder, changes=FolderChanges(context_tokens=128)).remarks == ()
    short = {**longrope, "long_factor": longrope["short_factor"]}
    as_short = changed(bases("llama"), tmp_path / "short", rope_scaling=short)
    assert np.array_equal(logits(folder, FolderChanges(context_tokens=128)), logits(as_short))


def test_a_head_that_is_the_embeddings_is_scaled_as_another(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    """What comes out differs from mlx-lm's by the width over that of the base."""
    folder = make_text_model(tmp_path / "tied", "minicpm3", tied=True)
    theirs = reference_logits(folder, list(range(1, 80)), [])[0]
    assert np.abs(2 * logits(folder) - theirs).max() < 1e-3 * np.abs(theirs).max()


@pytest.mark.parametrize("kind", ["dots1", "gemma2", "mistral", "mixtral", "phi3", "starcoder2"])
def test_a_layer_sees_as_many_tokens_as_its_window_has(tmp_path: Path, kind: str) -> None:
    base = make_text_model(tmp_path / "base", kind)
    weights = mx.load(str(base / "model.safetensors"))
    assert isinstance(weights, dict)
    # With one layer it is seen which tokens the last one sees.
    kept = {name: value for name, value in weights.items() if ".layers." not in name}
    kept |= {name: value for name, value in weights.items() if ".layers.0." in name}
    mx.save_safetensors(str(base / "model.safetensors"), kept)
    folder = changed(
        base, tmp_path / "one", num_hidden_layers=1, sliding_window=16, use_sliding_window=True,
        max_window_layers=0,
    )  # fmt: skip
    forward = open_checkpoint(folder).forward

    def last(other: int) -> np.ndarray[Any, Any]:
        tokens = [place % 50 + (60 if place == other else 1) for place in range(40)]
        cache = forward.new_cache()
        for part in (tokens[:30], tokens[30:39], tokens[39:]):
            given = mx.array([part])
            logits = forward.prompt(given, cache, forward.embed(given))
        return np.array(logits[0, -1])

    plain = last(-1)
    seen = [place for place in range(40) if np.abs(last(place) - plain).max() > 1e-5]
    assert seen == list(range(24, 40))
