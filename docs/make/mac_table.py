"""Makes the table of docs/start/which-model.md: which well-known models fit Macs of each size.

    python -m docs.make.mac_table

It has the code estimate them that plans their workers, from their configurations and from the size
that their weights have in 4 bits, in groups of 64. Nothing is fetched.
"""

import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import MemoryConfig, ModelConfig
from lmx.supervisor.decisions.ledger import budget_bytes
from lmx.supervisor.decisions.working_set import working_set_bytes
from lmx.supervisor.memory.inspection import ModelFiles
from lmx.supervisor.memory.plan import estimate_memory, plan_of
from lmx.worker.mlx.memory.estimate import estimate

GIB: Final = 1024**3
MEMORIES_GB: Final = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


def _qwen3(layers: int, heads: int, hidden: int, inner: int, **other: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 8, "head_dim": 128, "hidden_size": hidden,
        "intermediate_size": inner, "vocab_size": 151_936, "max_position_embeddings": 40_960,
        **other,
    }  # fmt: skip


def _llama(layers: int, heads: int, hidden: int, inner: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 8, "hidden_size": hidden, "intermediate_size": inner,
        "vocab_size": 128_256, "max_position_embeddings": 131_072,
    }  # fmt: skip


def _experts(layers: int, heads: int, hidden: int, inner: int) -> dict[str, Any]:
    return _qwen3(
        layers, heads, hidden, inner, model_type="qwen3_moe", num_key_value_heads=4,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=inner,
    )  # fmt: skip


MODELS: Final[dict[str, tuple[float, dict[str, Any]]]] = {
    "Llama 3.2 3B": (3.21e9, _llama(28, 24, 3072, 8192)),
    "Qwen3 8B": (8.19e9, _qwen3(36, 32, 4096, 12_288)),
    "Qwen3 14B": (14.77e9, _qwen3(40, 40, 5120, 17_408)),
    "Qwen3 30B-A3B": (30.53e9, _experts(48, 32, 2048, 768)),
    "Qwen3 32B": (32.76e9, _qwen3(64, 64, 5120, 25_600)),
    "Llama 3.3 70B": (70.55e9, _llama(80, 64, 8192, 28_672)),
    "Qwen3 235B-A22B": (235.09e9, _experts(94, 64, 4096, 1536)),
}
"""Parameters, and what the makers' config.json says."""


def table() -> str:
    """Return the table, in Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: _files(Path(folder), *made) for name, made in MODELS.items()}
    rows = [
        f"| memory | GPU, models | {' | '.join(MODELS)} |",
        f"|---|---|{'---|' * len(MODELS)}",
    ]
    for memory_gb in MEMORIES_GB:
        total = memory_gb * GIB
        working_set = working_set_bytes(total, None, 0)
        budget = budget_bytes(MemoryConfig(), total, working_set)
        cells = [_cell(each, budget) for each in files.values()]
        sizes = f"{working_set / GIB:.1f}, {budget / GIB:.1f} GiB"
        rows.append(f"| {memory_gb} GB | {sizes} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _files(folder: Path, parameters: float, config: dict[str, Any]) -> ModelFiles:
    (folder / "config.json").write_text(json.dumps(config))
    # 4 bits each, and two 16-bit numbers for 64 of them.
    sizes = {"w": ("U32", int(parameters / 2)), "s": ("BF16", int(parameters / 16))}
    header, offset = {}, 0
    for name, (kind, size) in sizes.items():
        header[name] = {"dtype": kind, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    parsed = read_checkpoint_config(folder)
    memory = estimate(folder, parsed, ModelKind.CHAT, "darwin")
    return ModelFiles(memory, parsed.context_tokens, "")


def _cell(files: ModelFiles, budget: int) -> str:
    model = ModelConfig(id="m", source="/m")
    found = estimate_memory(model, ModelKind.CHAT, files, None, budget)
    plan = plan_of(model, ModelKind.CHAT, files, None, found, None)
    if plan.reserve_bytes > budget:
        return "-"
    return f"{plan.reserve_bytes / GIB:.1f} GiB, {(found.context_tokens or 0) // 1024}k"


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
