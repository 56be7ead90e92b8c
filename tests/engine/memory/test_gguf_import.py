"""The real converter with a real file: what gguf2mlx can do on this machine, as the code claims."""

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from lmx.supervisor.fetch.conversion_form import Form, output_bytes
from lmx.supervisor.fetch.gguf import read_facts, run_gguf2mlx


def dtypes(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for shard in folder.glob("*.safetensors"):
        with shard.open("rb") as handle:
            header = json.loads(handle.read(struct.unpack("<Q", handle.read(8))[0]))
        header.pop("__metadata__", None)
        found |= {name: tensor["dtype"] for name, tensor in header.items()}
    return found


def weights_bytes(folder: Path) -> int:
    return sum(shard.stat().st_size for shard in folder.glob("*.safetensors"))


def answer(folder: Path) -> str:
    from mlx_vlm import generate
    from mlx_vlm.utils import load

    model, processor = load(str(folder))
    tokenizer = getattr(processor, "tokenizer", processor)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    return str(generate(model, processor, prompt, max_tokens=12, temperature=0.0).text)


@pytest.mark.long
def test_the_float32_folder_answers(smollm2_gguf: Path, smollm2_dir: Path) -> None:
    facts = read_facts(smollm2_gguf)
    assert facts.is_quantised
    assert set(dtypes(smollm2_dir).values()) == {"F32"}
    expected = output_bytes("float32", facts)
    assert expected <= weights_bytes(smollm2_dir) < expected * 1.01
    assert "Paris" in answer(smollm2_dir)


def test_the_reader_counts_the_weights(smollm2_gguf: Path) -> None:
    assert read_facts(smollm2_gguf).weight_count == 134_515_008


@pytest.mark.parametrize(
    ("form", "scales"),
    [
        pytest.param("bfloat16", None, marks=pytest.mark.conformance),
        pytest.param("int4-float32", "F32", marks=pytest.mark.conformance),
        ("int4-bfloat16", "BF16"),
    ],
)
@pytest.mark.long
def test_other_forms(smollm2_gguf: Path, tmp_path: Path, form: Form, scales: str | None) -> None:
    reports: list[tuple[str, float | None]] = []
    run_gguf2mlx(
        smollm2_gguf,
        tmp_path / "out",
        form,
        lambda phase, fraction, _detail: reports.append((phase, fraction)),
    )
    assert reports[-1] == ("convert", 1.0)
    # It moves, and never back: while the weights are converted, and while they are compared.
    fractions = [fraction for _, fraction in reports if fraction is not None]
    assert fractions == sorted(fractions)
    assert len({fraction for fraction in fractions if 0.15 < fraction < 0.8}) > 100
    if not form.startswith("int4-"):
        assert len({fraction for phase, fraction in reports if phase == "check"}) > 100
    found = dtypes(tmp_path / "out")
    assert found["model.embed_tokens.weight"] == ("F32" if form == "int4-float32" else "BF16")
    assert found.get("model.layers.0.mlp.up_proj.scales") == scales
    expected = output_bytes(form, read_facts(smollm2_gguf))
    assert expected * 0.9 <= weights_bytes(tmp_path / "out") <= expected * 1.01
    report = json.loads((tmp_path / "out" / "conversion_report.json").read_text())
    if form == "bfloat16":
        # The audit of the path that gguf2mlx's own command line keeps shut.
        assert report["gates"]["weight"] == "pass"
    if form == "int4-float32":
        assert "Paris" in answer(tmp_path / "out")


@pytest.mark.long
def test_sigterm_in_the_middle_leaves_nothing(smollm2_gguf: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "lmx.supervisor.fetch.main"),
            *("--source", str(smollm2_gguf), "--models-dir", str(tmp_path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        # Before that its header is read.
        if (json.loads(line)["fraction"] or 0.0) > 0.15:
            break
    assert [path for path in tmp_path.iterdir() if path.is_dir()], "it has not begun"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
