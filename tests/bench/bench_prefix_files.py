"""What a request costs as the prefix cache's folder fills: it must not depend on how many files."""

import random
import tempfile
from pathlib import Path

import psutil

from lmx.protocol.messages.specs import PrefixCacheSpec
from tests.bench.rigs.report import Section
from tests.bench.rigs.worker_bench import BenchWorker, bench_worker

ROUNDS = 6
REQUESTS = 200
WORDS = ("ship", "harbour", "north", "winter", "master", "one")
PROMPT_WORDS = 40


def cpu_s(worker: BenchWorker, number: int, random_: random.Random) -> float:
    """Return the CPU seconds that a round of requests takes, all of different prompts."""
    process = psutil.Process(worker.process.pid)
    before = process.cpu_times()
    for request in range(REQUESTS):
        prompt = f"{number}-{request} {' '.join(random_.choices(WORDS, k=PROMPT_WORDS))}"
        worker.wait([worker.start(prompt, 1)])
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system


def measure(model: Path) -> Section:
    """Measure one round after the other in one folder."""
    random_ = random.Random(2)
    rows = [["files", f"CPU for {REQUESTS} requests, s"]]
    with tempfile.TemporaryDirectory() as folder:
        cache = PrefixCacheSpec(64 << 20, folder, 4 << 30)
        with bench_worker(model, prefix_cache=cache) as worker:
            for number in range(ROUNDS):
                took_s = cpu_s(worker, number, random_)
                rows.append([str(len(list(Path(folder).glob("*/*")))), f"{took_s:.1f}"])
                print(*rows[-1], flush=True)
    ratio = float(rows[-1][1]) / float(rows[1][1])
    return Section(
        "The prefix cache's files",
        f"{ROUNDS * REQUESTS} different prompts, a token each, with the cache on disk. The last "
        f"{REQUESTS} take {ratio:.2f} times the CPU of the first.",
        rows,
    )
