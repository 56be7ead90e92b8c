"""Small requests while a long prompt is read: how long they wait for their first token.

``make bench-small`` measures in turns how long small requests wait in the engine alone, and while a
long prompt is read: its processor time, which other programs change little. ``AGAINST=FOLDER``,
another checkout, is measured in turns with it.
"""

import inspect
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one
from tests.bench.rigs.report import Section

TURNS: Final = 2
ROUNDS: Final = 4
REQUESTS: Final = 10
SMALL_TOKENS: Final = 60
CONTEXT_TOKENS: Final = 65_536
_LONG_TOKENS: Final = {3: 4_000, 12: 1_500}
"""How long the prompts are that the engine reads, some four seconds, by the model's layers."""
_ALONE: Final = "alone"
_MEANWHILE: Final = "while a long prompt is read"
_NEXT: Final = "the next tokens meanwhile"
_READING: Final = "reading"


def main() -> None:
    """Print percentiles of the time to the first token, and their ratios."""
    if measured_one(_measure):
        return
    for checkout, turns in in_turns(__file__, asked(), TURNS).items():
        print(f"\n{checkout}")
        for row in _table(turns):
            print("  ".join(cell.ljust(40) for cell in row))


def measure(_: Path) -> Section:
    """Measure this checkout."""
    return Section(
        "Small requests during a long prompt, in the engine",
        f"Processor time of the engine from when a request of {SMALL_TOKENS} tokens comes until "
        "its first token, on tiny models: alone, and while a prompt is read that takes about four "
        "seconds (`make bench-small`; `AGAINST=` another checkout measures both in turns). What "
        "[pausing-chunks.md](decisions/pausing-chunks.md) brought, when it was made, at a load of "
        "25 to 30 by other programs: p50 and p95 were 6.6 and 8.5 times those of alone instead of "
        "17.2 and 45.5 with 3 layers, and 1.6 and 3.3 instead of 11.2 and 24.8 with 12.",
        _table(in_turns(__file__, [ROOT], TURNS)[ROOT]),
    )


def _table(turns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["", "p50, ms", "p95, ms"]]
    for layers in _LONG_TOKENS:
        # Its keys were those of JSON.
        measured = [turn[str(layers)] for turn in turns]
        before = f"{layers} layers, "
        alone, meanwhile = (_cuts(measured, name) for name in (_ALONE, _MEANWHILE))
        ratios = [f"{late / soon:.2f}" for late, soon in zip(meanwhile, alone, strict=True)]
        reading = statistics.median(one for turn in measured for one in turn[_READING])
        rows += [
            _row(f"{before}{_ALONE}", alone),
            _row(f"{before}{_MEANWHILE}", meanwhile),
            [f"{before}ratio", *ratios],
            _row(f"{before}{_NEXT}", _cuts(measured, _NEXT)),
            [f"{before}the prompt alone, s", f"{reading:.2f}", ""],
        ]
    return rows


def _cuts(turns: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    from lmx.supervisor.cli.bench.figures import percentile  # Earlier checkouts have none.

    found = sorted(one for turn in turns for one in turn[name])
    return [percentile(found, each) for each in (50, 95)]


def _row(name: str, cuts_s: Sequence[float]) -> list[str]:
    return [name, *(f"{1000 * cut_s:.1f}" for cut_s in cuts_s)]


def _measure() -> Mapping[str, Any]:
    """Everything that looks at a clock in the engine sees the processor time: the length of chunks
    is then that of a machine on which nothing else runs."""
    from tests.support.models.tiny_models import CONFIGS, make_tiny_model
    from tests.support.rigs.engine_rig import EngineRunner, spec_of

    found = {}
    for layers, tokens in _LONG_TOKENS.items():
        kind = f"llama-{layers}"
        config = CONFIGS["llama"] | {"num_hidden_layers": layers}
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(CONFIGS, {kind: config}):
            model = make_tiny_model(Path(folder) / kind, kind, CONTEXT_TOKENS)
            with mock.patch.object(time, "perf_counter", time.process_time):
                runner = EngineRunner(spec_of(model, max_decode_stall_s=0.3))
                found[str(layers)] = _rounds(runner, tokens, random.Random(1))
    return found


def _rounds(runner: Any, tokens: int, chance: random.Random) -> Mapping[str, list[float]]:
    def prompt(tokens: int) -> list[int]:
        return [chance.randrange(1, 200) for _ in range(tokens)]

    took: dict[str, list[float]] = {_ALONE: [], _MEANWHILE: [], _NEXT: [], _READING: []}
    runner.alone(prompt(tokens // 2), max_tokens=2)  # The length of chunks is learned.
    for _ in range(ROUNDS):
        began_s = time.process_time()
        runner.alone(prompt(tokens), max_tokens=1)
        took[_READING].append(time.process_time() - began_s)
        for _ in range(REQUESTS):
            took[_ALONE].append(_gaps_s(runner, prompt(SMALL_TOKENS), 0.0)[0])
        long = runner.admit(prompt(tokens), max_tokens=2)
        while long not in runner.started:
            comes_s = time.process_time() + chance.uniform(0.0, 1.0)
            first_s, *gaps_s = _gaps_s(runner, prompt(SMALL_TOKENS), comes_s)
            took[_MEANWHILE].append(first_s)
            took[_NEXT] += gaps_s
        runner.finish()
    return took


def _gaps_s(runner: Any, prompt: Sequence[int], comes_s: float) -> list[float]:
    """Return how long a request waits for each of its tokens that comes at a time, whatever is done
    then."""

    def has_come() -> bool:
        return time.process_time() >= comes_s

    # Checkouts from before chunks paused are not asked.
    pauses = "interrupted" in inspect.signature(runner.generator.step).parameters
    while not has_come() and runner.live:
        runner._take(runner.generator.step(*([has_come] if pauses else [])))
    last_s = min(comes_s or float("inf"), time.process_time())
    gaps_s: list[float] = []
    small = runner.admit(prompt, max_tokens=4)
    while small in runner.live:
        runner.step()
        if len(runner.tokens[small]) > len(gaps_s):
            now_s = time.process_time()
            gaps_s.append(now_s - last_s)
            last_s = now_s
    return gaps_s


if __name__ == "__main__":
    main()
