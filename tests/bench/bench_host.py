"""What the host does in a step: the engine thread's processor time, by how rows are sampled.

The model is as thin as possible and has a real model's vocabulary. The time of the device is not
counted, and other programs hardly change these figures. ``make bench-host`` measures this checkout;
``AGAINST=FOLDER``, another checkout, is measured in turns with it.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one
from tests.bench.rigs.report import Section

TURNS = 3
ROWS = (1, 8, 32)
PROMPT_TOKENS = 1000
WARM_UP_STEPS = 20
STEPS = 100
_ENDLESS = 1_000_000
_THIN: Final[Mapping[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
_WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top_k and top_p": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "penalties": {
        "temperature": 0.7,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
    },
    "a grammar": {"temperature": 1.0},
    "5 logprobs": {"temperature": 0.0},
}


def main() -> None:
    """Print milliseconds in a step, of this checkout and of others."""
    if measured_one(_measure_checkout):
        return
    from tests.bench.run import demo_model

    section = _measured(demo_model(), asked())
    for row in section.rows:
        print("  ".join(cell.ljust(18) for cell in row))


def measure(model: Path) -> Section:
    """Measure this checkout."""
    section = _measured(model, [ROOT])
    for row in section.rows[1:]:
        print(*row, flush=True)
    return section


def _measured(model: Path, checkouts: Sequence[Path]) -> Section:
    with tempfile.TemporaryDirectory() as folder:
        thin = make_thin(model, Path(folder) / "thin")
        found = in_turns(__file__, checkouts, TURNS, thin)
    medians = [
        {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for turns in found.values()
    ]
    heads = [f"{count} row{'s' * (count > 1)}, ms" for count in ROWS]
    if len(checkouts) > 1:
        heads = [f"{head}, {checkout.name}" for head in heads for checkout in checkouts]
    rows = [["sampling", *heads]]
    for way in _WAYS:
        cells = [f"{one[f'{way} {count}']:.2f}" for count in ROWS for one in medians]
        rows.append([way, *cells])
    return Section(
        "What the host does in a step",
        "Processor time of the engine's thread in a step of its rows, without the device's time, "
        "text, and messages. A model of one thin layer with SmolLM2's vocabulary, prompts "
        f"of {PROMPT_TOKENS} tokens; each step is one of {STEPS}, median of {TURNS} runs. The "
        "penalties are a repetition, a presence, and a frequency penalty. While this is less than "
        "the device needs for a step, the device never waits.",
        rows,
    )


def make_thin(model: Path, folder: Path) -> Path:
    """Write a thin model with the tokenizer of another one."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_vlm.utils import get_model_and_args

    weights = shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(model, folder, ignore=weights)
    config = json.loads((folder / "config.json").read_text()) | _THIN
    config.pop("quantization", None)
    (folder / "config.json").write_text(json.dumps(config))
    module, _ = get_model_and_args(dict(config))
    made = module.Model(module.ModelConfig.from_dict(dict(config)))
    mx.random.seed(0)
    arrays = {
        name: 0.05 * mx.random.normal(array.shape)
        for name, array in tree_flatten(made.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "mlx"})
    return folder


def _measure_checkout(model: Path) -> dict[str, float]:
    try:
        from lmx.worker.engine.values import ConstraintSource, SequenceSampling
    except ModuleNotFoundError:  # An earlier checkout.
        from lmx.worker.engine import ConstraintSource, SequenceSampling  # type: ignore[attr-defined,no-redef]
    from lmx.protocol.messages.data import Structure, Thinking
    from lmx.protocol.states import StructureKind
    from tests.support.rigs.engine_rig import EngineRunner, spec_of

    runner = EngineRunner(spec_of(model, max_decode_stall_s=10))
    schema = {"type": "array", "items": {"type": "string"}, "minItems": _ENDLESS}
    structure = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "response_format")
    grammar = runner.generator.constrain(ConstraintSource(structure, None, Thinking(), False))
    assert grammar is not None
    figures = {}
    for count in ROWS:
        for way, parameters in _WAYS.items():
            sequence_ids = [
                runner.admit(
                    [300 + (97 * row + 13 * place) % 40_000 for place in range(PROMPT_TOKENS)],
                    SequenceSampling(**parameters, seed=row),
                    _ENDLESS,
                    constraint=grammar() if way == "a grammar" else None,
                    top_logprobs=5 if way == "5 logprobs" else None,
                )
                for row in range(count)
            ]
            while (
                min(len(runner.tokens[sequence_id]) for sequence_id in sequence_ids) < WARM_UP_STEPS
            ):
                runner.step()
            began_s = time.thread_time()
            for _ in range(STEPS):
                runner.generator.step()
            figures[f"{way} {count}"] = 1000 * (time.thread_time() - began_s) / STEPS
            runner.clear()
    return figures


if __name__ == "__main__":
    main()
