"""What speculation by default costs where nothing repeats: ``make bench-speculation``.

Three engines in one process answer in turns: two without speculation, which show how much the
figures scatter, and one with it. The texts are sampled from a prompt that holds nothing to look up.
A thin model of one layer shows the work around a step, a small real one what a user notices.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from lmx.protocol.messages.specs import SpeculationSpec
from lmx.worker.engine.values import SequenceSampling
from tests.bench.bench_host import make_thin
from tests.bench.run import demo_model
from tests.support.rigs.engine_rig import EngineRunner, spec_of

_PROMPT: Final = "Tell me a long story of a sailor and a lighthouse keeper who never met."
_CLOCKS: Final = {"wall": time.perf_counter, "processor": time.process_time}


def main() -> None:
    """Print the times of a token by the number of rows, as ratios."""
    with tempfile.TemporaryDirectory() as folder:
        thin = make_thin(demo_model(), Path(folder) / "thin")
        _compare("one layer", thin, rows=1, tokens=300, turns=15)
        _compare("one layer", thin, rows=2, tokens=300, turns=15)
    _compare("real model", demo_model(), rows=1, tokens=48, turns=5)


def _compare(name: str, model: Path, *, rows: int, tokens: int, turns: int) -> None:
    specs = (None, SpeculationSpec(auto=True), None)
    sides = [EngineRunner(replace(spec_of(model, speculation=spec), max_rows=8)) for spec in specs]
    took: list[list[list[float]]] = [[] for _ in sides]
    for turn in range(turns):
        order = range(len(sides))
        for number in order if turn % 2 else reversed(order):
            took[number].append(_token_s(sides[number], rows, tokens, turn))
    for place, clock in enumerate(_CLOCKS):
        first, by_default, second = (
            statistics.median(one[place] for one in turns_of) for turns_of in took
        )
        print(
            f"{name}, {rows} rows, {clock}: {1e6 * first:.0f} us a token; with speculation "
            f"{2 * by_default / (first + second):.3f} of it, without again {second / first:.3f}",
            flush=True,
        )


def _token_s(runner: EngineRunner, rows: int, tokens: int, turn: int) -> list[float]:
    ids = [
        runner.admit(f"{row} {_PROMPT}", SequenceSampling(1.0, seed=100 * turn + row), tokens)
        for row in range(rows)
    ]
    runner.until(lambda: len(runner.started) >= max(ids))
    began = [clock() for clock in _CLOCKS.values()]
    runner.finish()
    ended = [clock() for clock in _CLOCKS.values()]
    return [(end - begin) / (rows * tokens) for begin, end in zip(began, ended, strict=True)]


if __name__ == "__main__":
    main()
