"""How soon the second turn of a conversation begins, with and without the prefix cache."""

import statistics
from pathlib import Path

from lmx.protocol.messages.specs import PrefixCacheSpec
from tests.bench.rigs.report import Section
from tests.bench.rigs.worker_bench import BenchWorker, bench_worker, sampling

ROUNDS = 3
ANSWER_TOKENS = 24
WORDS = "The harbour master wrote down every ship that came in from the north that winter. "
FIRST = WORDS * 12 + "Which of them was the last?"


def second_turn(worker: BenchWorker, number: int) -> tuple[float, float, int]:
    """Return the seconds to the first token of two turns, and the second's cached tokens."""
    opening = {"role": "user", "content": f"Report {number}. {FIRST}"}
    asked = {"sampling": sampling(ignore_eos=False, min_tokens=8)}
    first = worker.start("", ANSWER_TOKENS, messages=(opening,), **asked)
    worker.wait([first])
    turns = (
        opening,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And the one before?"},
    )
    second = worker.start("", ANSWER_TOKENS, messages=turns, **asked)
    worker.wait([second])
    assert second.finished
    return first.ttft_s, second.ttft_s, second.finished.usage.cached_tokens


def measure(model: Path) -> Section:
    """Measure without and with the cache."""
    rows = [["prefix cache", "first turn, s", "second turn, s", "second turn's cached tokens"]]
    for name, cache in (("off", None), ("on", PrefixCacheSpec(256 << 20))):
        with bench_worker(model, prefix_cache=cache) as worker:
            found = [second_turn(worker, number) for number in range(ROUNDS)]
        first, second, cached = (statistics.median(values) for values in zip(*found, strict=True))
        rows.append([name, f"{first:.2f}", f"{second:.2f}", f"{cached:.0f}"])
        print(*rows[-1], flush=True)
    ratio = float(rows[1][2]) / float(rows[2][2])
    return Section(
        "Second turn of a conversation",
        "Time to the first token. The second turn holds the first one and its answer. With the "
        f"cache it begins {ratio:.1f} times sooner. Median of {ROUNDS} conversations.",
        rows,
    )
