"""A worker's decode throughput against mlx-vlm's bare batch loop.

With a small model, and with a tiny one: for that the device does so little that the host's work
shows.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.rigs.report import Section
from tests.bench.rigs.worker_bench import LMX_PARENT, BenchWorker, bench_worker, rows_rate, sampling
from tests.support.models.tiny_models import make_tiny_model

BATCHES = {1: 64, 8: 48, 32: 96}
"""Rows -> tokens that each makes."""
TINY_TOKENS = 400
WAYS = {"greedy": 0.0, "temperature 1": 1.0}
ROUNDS = 3
PROMPT_TOKENS = 8
FIRST_TOKEN = 300


class BareLoop:
    """The process of ``bare_loop.py``."""

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.rigs.bare_loop", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(LMX_PARENT)},
        )
        self._read()

    def run(self, prompts: list[list[int]], max_tokens: int, temperature: float) -> float:
        """Return decode tokens per second."""
        assert self._process.stdin
        asked = {"prompts": prompts, "max_tokens": max_tokens, "temperature": temperature}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return float(self._read()["decode_tokens_per_s"])

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())


def prompts_for(rows: int, first_token: int = FIRST_TOKEN) -> list[list[int]]:
    """Return different prompts of one length. If ``first_token`` is 0, all tokens are below 256."""
    width = 97 if first_token else 7
    return [
        [first_token + width * row + step for step in range(PROMPT_TOKENS)] for row in range(rows)
    ]


def worker_rate(worker: BenchWorker, prompts: list[list[int]], max_tokens: int, t: float) -> float:
    """Return a worker's decode tokens per second for the same work."""
    ways = [sampling(temperature=t, seed=row) for row in range(len(prompts))]
    return rows_rate(worker, prompts, max_tokens, ways)


def measure(model: Path) -> Section:
    """Measure at each batch size, bare loop and worker in turns."""
    return Section(
        "Worker against the bare batch loop",
        "Decode throughput while all rows decode, no end of sequence. The bare loop is mlx-vlm's "
        "`BatchGenerator` with nothing around it (`tests/bench/rigs/bare_loop.py`); the worker is "
        "the whole process: its sockets, text, and messages included. The bare loop makes no text "
        "and sends nothing. On a CPU, the worker has norms and rotary positions computed of fewer "
        "operations (`worker/mlx/device/cpu.py`), and the bare loop as mlx does. Both in processes "
        f"of their own, in turns, median of {ROUNDS}; once with the one started first, once with "
        "the other, since the process that starts second was up to a tenth faster, whichever it "
        "was. The figures are the geometric means of both.",
        _measured(model, FIRST_TOKEN, BATCHES),
    )


def measure_tiny(_: Path) -> Section:
    """Measure the same with a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = make_tiny_model(Path(folder) / "tiny", "llama")
        rows = _measured(tiny, 0, dict.fromkeys(BATCHES, TINY_TOKENS))
    return Section(
        "The same with a tiny model",
        "Three thin layers and a token for each byte: the device does so little that the work "
        "around it shows. Steps are so quick that the outputs of several go in one message "
        f"(`worker/scheduling/outbox.py`). Medians of {ROUNDS}, both orders of starting, as above.",
        rows,
    )


def _measured(model: Path, first_token: int, batches: Mapping[int, int]) -> list[list[str]]:
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for worker_first in (False, True):
        with _started(model, worker_first=worker_first) as (bare, worker):
            for batch, max_tokens in batches.items():
                for name, temperature in WAYS.items():
                    prompts = prompts_for(batch, first_token)
                    rates: dict[str, list[float]] = {"bare": [], "worker": []}
                    for _ in range(ROUNDS):
                        rates["bare"].append(bare.run(prompts, max_tokens, temperature))
                        rates["worker"].append(
                            worker_rate(worker, prompts, max_tokens, temperature)
                        )
                    medians = {who: statistics.median(each) for who, each in rates.items()}
                    found.setdefault((batch, name), []).append(medians)
                    print(batch, name, f"{medians['worker'] / medians['bare']:.3f}", flush=True)
    rows = [["rows", "sampling", "bare loop, tokens/s", "worker, tokens/s", "ratio"]]
    for (batch, name), starts in found.items():
        bare_rate, ours = (
            statistics.geometric_mean(start[who] for start in starts) for who in ("bare", "worker")
        )
        rows.append(
            [str(batch), name, f"{bare_rate:.1f}", f"{ours:.1f}", f"{ours / bare_rate:.3f}"]
        )
        print(*rows[-1], flush=True)
    return rows


@contextmanager
def _started(model: Path, *, worker_first: bool) -> Iterator[tuple[BareLoop, BenchWorker]]:
    with ExitStack() as stack:
        if worker_first:
            worker = stack.enter_context(bench_worker(model))
        bare = BareLoop(model)
        stack.callback(bare.close)
        if not worker_first:
            worker = stack.enter_context(bench_worker(model))
        yield bare, worker
