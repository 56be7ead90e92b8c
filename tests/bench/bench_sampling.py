"""What it costs that every row is sampled in its own way."""

import statistics
from pathlib import Path
from typing import Any

from lmx.protocol.messages.data import TokenBias
from tests.bench.bench_throughput import prompts_for
from tests.bench.rigs.report import Section
from tests.bench.rigs.worker_bench import BenchWorker, bench_worker, rows_rate, sampling

ROUNDS = 3
BATCHES = {8: 48, 32: 80}

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.9, "top_k": 40},
    {"temperature": 1.1, "min_p": 0.05},
    {"temperature": 0.8, "repetition_penalty": 1.1, "top_p": 0.95},
    {"temperature": 0.6, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"temperature": 1.0, "logit_bias": (TokenBias(500, 3.0),), "typical_p": 0.9},
)


def rate(worker: BenchWorker, batch: int, max_tokens: int, kinds: Any) -> float:
    """Return decode tokens per second with the rows sampled by ``kinds`` in turn."""
    ways = [sampling(seed=row, **kinds[row % len(kinds)]) for row in range(batch)]
    return rows_rate(worker, prompts_for(batch), max_tokens, ways)


def measure(model: Path) -> Section:
    """Measure alike and different, in turns."""
    rows = [["rows", "all greedy, tokens/s", "all different, tokens/s", "ratio"]]
    with bench_worker(model) as worker:
        for batch, max_tokens in BATCHES.items():
            alike, different = [], []
            for _ in range(ROUNDS):
                alike.append(rate(worker, batch, max_tokens, KINDS[:1]))
                different.append(rate(worker, batch, max_tokens, KINDS))
            one, other = statistics.median(alike), statistics.median(different)
            rows.append([str(batch), f"{one:.1f}", f"{other:.1f}", f"{other / one:.3f}"])
            print(*rows[-1], flush=True)
    return Section(
        "Rows that are sampled differently",
        f"{len(KINDS)} ways to sample in one batch (greedy, temperature, top_p, top_k, min_p, "
        "penalties, logit_bias, typical_p) against a batch that is greedy throughout.",
        rows,
    )
