"""lmx and mlx_lm.server with a model of 1.2 billion weights, for a machine with a GPU.

The model has the shape of Llama 3.2 1B and random weights, once in bfloat16 and once in 4 bits; its
tokenizer reads a token for each byte. Both servers are started with their defaults, hold the model
at the same time, and are asked in turns by `lmx bench`. ``make bench-device``; with SHAPE=tiny it
tries itself out on a CPU.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from lmx.supervisor.cli.bench.traffic import session
from tests.bench.bench_start import name_as_published
from tests.bench.peers.rows import Server, wait_for_first_answer
from tests.bench.peers.servers import PEERS, Peer, Started, started
from tests.support.models.tiny_models import CHAT_TEMPLATE, make_word_tokenizer

_SHAPES: Final[dict[str, dict[str, int]]] = {
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
    },
}  # fmt: skip
_BITS: Final = (None, 4)
_START_S: Final = 120.0
_BENCH: Final = (
    "--scenario", "concurrency", "--scenario", "prompts", "--clients", "1,8,32",
    "--prompts", "512,8192", "--tokens", "128", "--rounds", "2", "--seconds", "40",
)  # fmt: skip


def main() -> None:
    """Measure both forms of the model; files of the figures go to a folder that is given second."""
    shape = sys.argv[1] if len(sys.argv) > 1 else "1b"
    kept = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    print(f"mlx {mx.__version__} on {mx.default_device()}: {mx.device_info()}", flush=True)
    for bits in _BITS:
        with tempfile.TemporaryDirectory() as folder:
            model = _model(Path(folder) / "m", shape, bits)
            print(f"\n{shape}, {bits or 16} bits", flush=True)
            _compare(model, [] if kept is None else ["--json", str(kept / f"{shape}-{bits}.json")])


def _model(folder: Path, shape: str, bits: int | None) -> Path:
    folder.mkdir()
    config: dict[str, Any] = _SHAPES[shape] | {
        "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "max_position_embeddings": 65_536, "tie_word_embeddings": True,
        "eos_token_id": _SHAPES[shape]["vocab_size"] - 1, "torch_dtype": "bfloat16",
    }  # fmt: skip
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    if bits is not None:
        nn.quantize(model, group_size=64, bits=bits)
        config["quantization"] = {"group_size": 64, "bits": bits}
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    name_as_published(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    # The words that it draws; they are spelled in bytes when they are read.
    words = [f" w{number}" for number in range(config["vocab_size"] - 257)]
    make_word_tokenizer([*words, "<|end|>"], CHAT_TEMPLATE).save_pretrained(folder)
    return folder


def _compare(model: Path, more: list[str]) -> None:
    with ExitStack() as stack:
        command = [sys.executable, "-m", "lmx.supervisor", "bench", *_BENCH, *more]
        for peer in PEERS[:2]:
            running = stack.enter_context(started(peer, Path(sys.executable), {"m": model}))
            asyncio.run(_wait(peer, running, model))
            command += [f"{peer.name}={running.url}", "--model", peer.named("m", model)]
        subprocess.run(command, check=False, timeout=600)


async def _wait(peer: Peer, running: Started, model: Path) -> None:
    async with session() as http:
        server = Server(peer, running, http, {"m": model}, 0, "first", _START_S)
        await wait_for_first_answer(server, _START_S)
        print(f"{peer.name}: first answer after {server.started_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
