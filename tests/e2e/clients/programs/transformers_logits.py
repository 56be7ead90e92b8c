"""Writes tiny random models as transformers saves them, each with the logits that it computes of
the same tokens. Runs with torch in an environment of its own; imports nothing of lmx.

``transformers_logits.py FOLDER`` reads JSON from its input: ``tokens``, and as ``models`` a list of
``[name, type, config]``.
Each model goes to ``FOLDER/name``, with ``logits.json`` beside its weights; one that transformers
itself can't make has ``fault.txt`` alone.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


def main() -> None:
    """Write them all."""
    asked = json.load(sys.stdin)
    for name, kind, config in asked["models"]:
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        try:
            _write(folder, kind, config, asked["tokens"])
        except Exception as error:  # Whatever it is, there is no reference.
            (folder / "fault.txt").write_text(f"{type(error).__name__}: {error}")


def _write(folder: Path, kind: str, values: dict[str, Any], tokens: list[int]) -> None:
    made = CONFIG_MAPPING[kind]
    known = {name for name in values if hasattr(made(), name) or name == "head_dim"}
    config = made(**{name: values[name] for name in known})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        # As they are made, weights are so small that places hardly count.
        for weights in model.parameters():
            noise = torch.randn_like(weights)
            weights.copy_(weights + 0.1 * noise if weights.ndim < 2 else 0.2 * noise)
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    model.save_pretrained(folder)
    (folder / "logits.json").write_text(json.dumps(logits.tolist()))


if __name__ == "__main__":
    main()
