"""What models are estimated at, and what their workers take at most with all caches full.

``bench_memory.py page [NAME=FOLDER ...]`` (``make bench-memory``) writes docs/memory.md;
``bench_memory.py FOLDER CONTEXT CONCURRENCY [KV_BITS]`` prints one model as JSON. Linux alone:
the peak is the system's own (``VmHWM``), not a sample.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.models.kind import read_kind
from lmx.protocol.models.memory import kv_bytes
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.memory.inspect_main import read_model_files
from lmx.supervisor.memory.plan import MemoryPlan, plan_memory
from lmx.worker.service.heartbeat import parse_status
from tests.bench.rigs.report import Section, section_lines
from tests.bench.rigs.worker_bench import BenchWorker, Trace, bench_worker, sampling

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "memory.md"
BUDGET_BYTES = 64 << 30
ANSWER_TOKENS = 40
PROMPTS = 2
"""Different ones: the prefix cache is as large as they are. Others begin with what it holds, so
that the KV cache is full without hours of prefill on a CPU."""

QUANTIZED_CONTEXT_TOKENS = 2048
ENCODED_INPUTS = 8
MIB = 1024**2
TEXT = (
    "The estimate is `lmx estimate`'s: from config.json and the headers of the "
    "weights, nothing loaded. Then the real worker, its KV cache full (so many rows of the whole "
    f"context at a time) and its prefix cache too (of {PROMPTS} prompts); its peak is the "
    "system's own figure, `VmHWM`. Nothing was measured before: the second load of a model "
    "starts from what the first one took."
)
BY_HAND = "\n## The limits of the KV cache\n"
"""The first of the page's sections that people write."""


@dataclass(frozen=True)
class Measured:
    """Bytes: estimated before the load, and measured after it and at most."""

    context_tokens: int
    rows: int
    estimated_static_bytes: int
    measured_static_bytes: int
    estimated_bytes: int
    measured_peak_bytes: int

    @property
    def ratio(self) -> float:
        """Of the estimate to what it turned out to be."""
        return self.estimated_bytes / self.measured_peak_bytes


def _plan(model: ModelConfig, kind: ModelKind, folder: Path) -> MemoryPlan:
    files = read_model_files(folder, kind, model.engine)
    return plan_memory(model, kind, files, None, BUDGET_BYTES, None)[1]


def memory(worker: BenchWorker, name: str) -> int:
    """Return a figure of /proc/PID/status in bytes."""
    found = parse_status(Path(f"/proc/{worker.process.pid}/status").read_text(), name)
    assert found is not None, name
    return found


def fill(worker: BenchWorker, rows: int, context_tokens: int, vocabulary: range) -> None:
    """Have so many rows at a time grow to the whole context, until the caches are full."""
    prompts = []
    for number in range(PROMPTS):
        chosen = random.Random(number)
        length = context_tokens - ANSWER_TOKENS
        prompts.append(tuple(chosen.choice(vocabulary) for _ in range(length)))
    for prompt in prompts:
        worker.wait([start(worker, prompt, 1)])
    # Begins where the prefix cache ends: all are there together before the first one ends.
    traces = [start(worker, prompts[number % PROMPTS], ANSWER_TOKENS) for number in range(rows)]
    worker.wait(traces)


def start(worker: BenchWorker, prompt: Sequence[int], max_tokens: int) -> Trace:
    """Have a worker continue a prompt."""
    asked = {"messages": None, "prompt_tokens": prompt, "parse": False}
    return worker.start("", max_tokens, sampling=sampling(), **asked)


def measure_writer(
    folder: Path, context_tokens: int, concurrency: int, kv_bits: int | None = None
) -> Measured:
    """Measure a model that writes."""
    model = ModelConfig(
        id="m", source=str(folder), context_length=context_tokens, concurrency=concurrency,
        prefix_cache={"enabled": False}, kv_bits=kv_bits,
    )  # fmt: skip
    bare = _plan(model, ModelKind.CHAT, folder)
    row_bytes = kv_bytes(bare.kv_layers, context_tokens)
    cache = {"memory_bytes": PROMPTS * row_bytes, "disk": False}
    model = ModelConfig.model_validate(model.model_dump() | {"prefix_cache": cache})
    plan = _plan(model, ModelKind.CHAT, folder)
    assert plan.kv_cache_bytes is not None
    rows = plan.kv_cache_bytes // row_bytes
    settings = {
        "context_length": context_tokens, "max_rows": rows, "kv_layers": plan.kv_layers,
        "kv_cache_bytes": plan.kv_cache_bytes, "memory_limit_bytes": plan.reserve_bytes,
        "prefix_cache": PrefixCacheSpec(plan.prefix_cache_bytes), "kv_bits": plan.kv_bits,
    }  # fmt: skip
    with bench_worker(folder, **settings) as worker:
        static_bytes = memory(worker, "VmRSS")
        # Neither special tokens nor rare ones.
        known = read_checkpoint_config(folder).vocabulary_tokens
        fill(worker, rows, context_tokens, range(known // 10, known // 2))
        return found(plan, context_tokens, rows, static_bytes, memory(worker, "VmHWM"))


def measure_encoder(folder: Path, kind: ModelKind, context_tokens: int) -> Measured:
    """Measure an embedding model."""
    model = ModelConfig(id="m", source=str(folder), context_length=context_tokens)
    plan = _plan(model, kind, folder)
    chosen = random.Random(0)
    with bench_worker(folder, kind=kind, context_length=context_tokens) as worker:
        static_bytes = memory(worker, "VmRSS")
        inputs = [
            [chosen.randrange(1000, 20_000) for _ in range(chosen.randrange(8, context_tokens))]
            for _ in range(ENCODED_INPUTS)
        ]
        worker.embed([*inputs, [2000] * context_tokens])
        return found(plan, context_tokens, 1, static_bytes, memory(worker, "VmHWM"))


def found(
    plan: MemoryPlan, context_tokens: int, rows: int, static_bytes: int, peak_bytes: int
) -> Measured:
    """Return it next to what was planned."""
    return Measured(
        context_tokens, rows, plan.static_bytes, static_bytes, plan.reserve_bytes, peak_bytes
    )


def measure(
    folder: Path, context_tokens: int, concurrency: int, kv_bits: int | None = None
) -> Measured:
    """Measure a model folder of any kind."""
    kind = read_kind(folder)
    if kind is ModelKind.CHAT:
        return measure_writer(folder, context_tokens, concurrency, kv_bits)
    return measure_encoder(folder, kind, context_tokens)


def section(models: dict[str, Path]) -> Section:
    """Measure each model and make the table."""
    head = (
        "model", "context x rows", "loaded: estimate, MiB", "measured, MiB",
        "at most: estimate, MiB", "measured, MiB", "ratio",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    for name, folder in models.items():
        encoder = read_kind(folder) is not ModelKind.CHAT
        for context_tokens, concurrency in ((512, 1),) if encoder else ((256, 1), (2048, 2)):
            rows.append(line(name, measure(folder, context_tokens, concurrency)))
            print(*rows[-1], flush=True)
    name, folder = next(iter(models.items()))
    for kv_bits in (8, 4):
        one = measure(folder, QUANTIZED_CONTEXT_TOKENS, 2, kv_bits)
        rows.append(line(f"{name}, kv_bits {kv_bits}", one))
        print(*rows[-1], flush=True)
    return Section("Estimate and measured peak", TEXT, rows)


def line(name: str, one: Measured) -> tuple[str, ...]:
    """Return a line of the table."""
    figures = (
        one.estimated_static_bytes, one.measured_static_bytes,
        one.estimated_bytes, one.measured_peak_bytes,
    )  # fmt: skip
    sizes = [f"{figure / MIB:.0f}" for figure in figures]
    return name, f"{one.context_tokens} x {one.rows}", *sizes, f"{one.ratio:.3f}"


def write_page(found: Section) -> None:
    """Write docs/memory.md, but for what people write there."""
    _, heading, text = PAGE.read_text().partition(BY_HAND)
    lines = [
        "# Memory: what is estimated, and what it turns out to be",
        "",
        "The table is written by `make bench-memory`. Without OpenBLAS it takes hours. Linux, on "
        "the CPU: what is assumed of Metal (chunks of 2048 tokens, attention in one kernel) was "
        "not measured.",
        *section_lines(found),
    ]
    PAGE.write_text("\n".join(lines) + "\n" + heading + text)


def main() -> None:
    """Write the page, or print one model's figures."""
    if sys.argv[1:2] == ["page"]:
        from tests.bench.run import demo_model
        from tests.support.models.minilm import obtain_minilm

        more = dict(each.split("=", 1) for each in sys.argv[2:])
        models = {
            "SmolLM2-135M, float32": demo_model(),
            "SmolLM2-135M, 4-bit": demo_model(memory_bytes=1 << 30),
            "all-MiniLM-L6-v2": obtain_minilm(),
            **{name: Path(folder) for name, folder in more.items()},
        }
        write_page(section(models))
        return
    folder, *numbers = sys.argv[1:]
    one = measure(Path(folder), *map(int, numbers))
    print(json.dumps(asdict(one) | {"ratio": one.ratio}))


if __name__ == "__main__":
    main()
