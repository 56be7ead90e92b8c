"""lmx and mlx_lm.server with a model of 1.2 billion weights, for a machine with a GPU.

The model has the shape of Llama 3.2 1B and random weights, once in bfloat16 and once in 4 bits; its
tokenizer reads a token for each byte. Both servers are started with their defaults, hold the model
at the same time, and are asked in turns by `lmx bench`. ``make bench-device`` writes
docs/benchmarks-gpu.md; the shape ``tiny`` tries the program out on a CPU, and ``page`` writes the
page alone.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from lmx.supervisor.cli.bench.traffic import session
from tests.bench.bench_start import name_as_published
from tests.bench.peers.rows import Server, wait_for_first_answer
from tests.bench.peers.servers import PEERS, ROOT, Peer, Started, started
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
_BITS: Final = (16, 4)
_START_S: Final = 180.0
_BENCH: Final = (
    "--scenario", "concurrency", "--scenario", "prompts", "--clients", "1,8,32",
    "--prompts", "512,8192", "--tokens", "128", "--rounds", "2", "--seconds", "40",
)  # fmt: skip
_PAGE: Final = ROOT / "docs" / "benchmarks-gpu.md"
_WORDS: Final = """\
# lmx on a GPU

Written by `make bench-device`, and not by hand: lmx and mlx_lm.server with a model of the shape of
Llama 3.2 1B and random weights, both started with their defaults and asked in turns by `lmx bench`.
Its tokenizer reads a token for each byte, so that "8,192 tokens" are some 8 KB of text. Tokens a
second are the median of the rounds, with the least and most; times are p50 and p95 in milliseconds.
Random weights repeat themselves: where one client is alone, lmx guesses what comes from what was
said (`speculation`), and several tokens come at once.

It stands in for a Mac, which nobody has lent to this project: what lmx does on a GPU, and not on a
CPU, is done here too, but for what is Metal's own (wired memory, fused filters of tokens).
"""


def main() -> None:
    """Measure both forms of the model, and write the page."""
    shape, kept = sys.argv[1], Path(sys.argv[2])
    kept.mkdir(parents=True, exist_ok=True)
    if shape == "page":
        _PAGE.write_text(_page(kept))
        return
    for earlier in kept.glob("*.json"):
        earlier.unlink()  # It may be of another device.
    (kept / "device").write_text(_device())
    print(_device(), flush=True)
    for bits in _BITS:
        with tempfile.TemporaryDirectory() as folder:
            model = _model(Path(folder) / "m", shape, bits)
            print(f"\n{shape}, {bits} bits", flush=True)
            _compare(model, kept / f"{shape}-{bits}.json")
    _PAGE.write_text(_page(kept))


def _device() -> str:
    name = mx.device_info().get("device_name", mx.default_device())
    return f"{name}, mlx {version('mlx')}"


def _page(kept: Path) -> str:
    parts = [_WORDS]
    for file in sorted(kept.glob("*.json")):
        found = json.loads(file.read_text())
        shape, bits = file.stem.split("-")
        machine = found["machine"]
        parts.append(
            f"## {shape.upper()}, {bits} bits\n\n{(kept / 'device').read_text()}; "
            f"{machine['system']} {machine['architecture']}, {machine['cores']} cores; "
            f"{found['rounds']['done']} rounds of "
            f"{found['seconds'] / found['rounds']['planned']:g} s for each server.\n\n"
            "| | server | failed | tokens/s | first token | next token | processor, ms a token |\n"
            "|---|---|---|---|---|---|---|\n" + "".join(map(_row, found["phases"]))
        )
    return "\n".join(parts)


def _row(measured: Mapping[str, Any]) -> str:
    (figures,) = measured["figures"]
    cells = [
        measured["phase"],
        measured["server"],
        f"{sum(figures['errors'].values())} of {figures['requests']}",
        _known(figures["tokens_per_s"], "{median:.0f} ({least:.0f}-{most:.0f})"),
        *(_in_ms(figures[name]) for name in ("first_token_s", "next_token_s")),
        _known(figures["cpu_ms_per_token"], "{median:.1f}"),
    ]
    return f"| {' | '.join(cells)} |\n"


def _in_ms(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"{1000 * found['p50']:.0f}, {1000 * found['p95']:.0f}"


def _known(found: Mapping[str, float] | None, words: str) -> str:
    return "-" if found is None else words.format(**found)


def _model(folder: Path, shape: str, bits: int) -> Path:
    folder.mkdir()
    config: dict[str, Any] = _SHAPES[shape] | {
        "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "max_position_embeddings": 65_536, "tie_word_embeddings": True,
        "eos_token_id": _SHAPES[shape]["vocab_size"] - 1, "torch_dtype": "bfloat16",
    }  # fmt: skip
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    if bits < 16:
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


def _compare(model: Path, figures: Path) -> None:
    with ExitStack() as stack:
        command = [sys.executable, "-m", "lmx.supervisor", "bench", *_BENCH]
        command += ["--json", str(figures)]
        for peer in PEERS[:2]:
            running = stack.enter_context(started(peer, Path(sys.executable), {"m": model}))
            asyncio.run(_wait(peer, running, model))
            command += [f"{peer.name}={running.url}", "--model", peer.named("m", model)]
        subprocess.run(command, check=True, timeout=600)


async def _wait(peer: Peer, running: Started, model: Path) -> None:
    async with session() as http:
        server = Server(peer, running, http, {"m": model}, 0, "first", _START_S)
        await wait_for_first_answer(server, _START_S)
        print(f"{peer.name}: first answer after {server.started_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
