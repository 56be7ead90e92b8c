"""Model folders of nothing but headers: for what is read from files without loading them."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.sources import folder_path
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.memory.inspect_main import read_model_files, with_found_draft
from lmx.supervisor.memory.inspection import Inspection, ModelFiles
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import MemoryPlan, plan_memory

PLAIN: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 1000,
}
PLAIN_TOKEN_BYTES = 2 * 2 * 2 * 16 * 2
"""Of one token in 16 bits: two layers of two heads of 16 numbers, keys and values."""


def write_shard(path: Path, **tensors: tuple[str, int]) -> None:
    """Write a safetensors file of type and bytes of each tensor; sparse, however large."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def write_model(folder: Path, weights_bytes: int = 4000, **config: Any) -> Path:
    """Write a folder of a small model with 16-bit weights; ``config`` is added to PLAIN's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PLAIN | config))
    write_shard(folder / "model.safetensors", w=("BF16", weights_bytes))
    return folder


def plan_folder(
    model: ModelConfig,
    kind: ModelKind,
    folder: Path,
    budget_bytes: int,
    measured: Measured | None,
    default_kv_bits: int | None = None,
) -> MemoryPlan:
    """Return the share of a worker of what lies in a folder, and of its draft's."""
    files, draft = read_folder(model, kind, folder)
    return plan_memory(model, kind, files, draft, budget_bytes, measured, default_kv_bits)[1]


def read_folder(
    model: ModelConfig, kind: ModelKind, folder: Path
) -> tuple[ModelFiles, ModelFiles | None]:
    """Return what the files of a folder say, and those of the model's draft."""
    speculation = model.speculation
    files = read_model_files(folder, kind, model.engine)
    if speculation is None or speculation.draft is None:
        question = replace(question_of(model, str(folder)), kind=kind)
        found = with_found_draft(Inspection(question, kind=kind, files=files), folder)
        assert found.files is not None
        return found.files, found.draft_files
    draft = read_model_files(folder_path(speculation.draft), ModelKind.CHAT, model.engine)
    return files, draft
