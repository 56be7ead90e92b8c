"""Run the benchmarks and write docs/benchmarks.md: ``make bench``.

Names as arguments run a part, without writing: throughput, tiny, host, prefix, stall, small,
sampling, lanes, mixed, relay, start, idle.
"""

import subprocess
import sys
from pathlib import Path

from lmx.supervisor.fetch.gguf import fetch_gguf
from tests.bench import (
    bench_host,
    bench_idle,
    bench_lanes,
    bench_mixed,
    bench_prefix,
    bench_relay,
    bench_sampling,
    bench_small,
    bench_stall,
    bench_start,
    bench_throughput,
)
from tests.bench.rigs.report import write_page

ROOT = Path(__file__).resolve().parent.parent.parent
BENCHES = {
    "throughput": bench_throughput.measure,
    "tiny": bench_throughput.measure_tiny,
    "host": bench_host.measure,
    "prefix": bench_prefix.measure,
    "stall": bench_stall.measure,
    "small": bench_small.measure,
    "sampling": bench_sampling.measure,
    "lanes": bench_lanes.measure,
    "mixed": bench_mixed.measure,
    "relay": bench_relay.measure,
    "start": bench_start.measure,
    "idle": bench_idle.measure,
}
AMPLE_MEMORY_BYTES = 64 << 30


def demo_model(memory_bytes: int = AMPLE_MEMORY_BYTES) -> Path:
    """Return SmolLM2 as a folder, made by the product's own import: float32, or 4-bit for a
    machine of 1 GiB."""
    fetch = [sys.executable, str(ROOT / "supervisor" / "cli" / "serving" / "demo.py")]
    done = subprocess.run(fetch, stdout=subprocess.PIPE, text=True, check=True)
    gguf = Path(done.stdout.strip())
    return fetch_gguf(
        gguf,
        gguf.parent.parent / "test-models",
        platform="linux",
        memory_bytes=memory_bytes,
        report=lambda _phase, _fraction, _detail: None,
    )


def main() -> None:
    """Run the benchmarks that were chosen."""
    model = demo_model()
    asked = sys.argv[1:] or list(BENCHES)
    sections = []
    for name in asked:
        print(f"== {name}", flush=True)
        sections.append(BENCHES[name](model))
    if not sys.argv[1:]:
        write_page(sections, "SmolLM2-135M-Instruct, float32")


if __name__ == "__main__":
    main()
