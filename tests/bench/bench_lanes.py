"""How much a row of 64,000 tokens slows down short ones that decode with it, and how fast it is.

Two engines with the same tiny model take short turns in one process, so that both see the same
machine: one decodes short rows alone, the other has the long row with them. What comes of a turn
is compared within it, and medians of many turns are given. ``make bench-lanes`` measures this
checkout; ``AGAINST=FOLDER``, another checkout, is measured in turns with it.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one
from tests.bench.rigs.report import Section
from tests.support.models.tiny_models import make_tiny_model

PROCESSES = 3
TURNS = 30
STEPS = 60
"""In a turn, each engine makes so many tokens of each short row."""
SHORT_ROWS = 4
SHORT_TOKENS = 64
READ_TOKENS = 4_000
COPIES = 16
"""The keys and values of the long row are those of a prompt, so many times. What a step behind them
costs does not depend on what they are, and reading a prompt of that length takes a CPU minutes."""
_ENDLESS = 1_000_000
_RATIO = "step of short rows: with the long one / alone"


def main() -> None:
    """Print medians, and between what the middle half of all turns is."""
    if measured_one(_measure):
        return
    for checkout, processes in _processes(asked()).items():
        print(f"\n{checkout}")
        for name, middle, middle_half in _rows(processes):
            print(f"  {name:50} {middle:>7}  ({middle_half})")
        middles = [f"{statistics.median(process[_RATIO]):.2f}" for process in processes]
        print(f"  that ratio in each process: {', '.join(middles)}")


def measure(_: Path) -> Section:
    """Measure this checkout."""
    (processes,) = _processes([ROOT]).values()
    rows = _rows(processes)
    for row in rows:
        print(*row, flush=True)
    return Section(
        "Short rows with a long one",
        f"{SHORT_ROWS} rows of some {SHORT_TOKENS} tokens decode alone, and with a row of "
        f"{READ_TOKENS * COPIES} tokens, in turns of {STEPS} steps in one process; the tiny model. "
        f"Medians of {PROCESSES} processes with {TURNS} turns each (`make bench-lanes`).",
        [["", "median", "the middle half of the turns"], *rows],
    )


def _processes(checkouts: Sequence[Path]) -> dict[Path, list[dict[str, list[float]]]]:
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model", "llama")
        return in_turns(__file__, checkouts, PROCESSES, model)


def _rows(processes: Sequence[Mapping[str, Sequence[float]]]) -> list[list[str]]:
    rows = []
    for name in processes[0]:
        values = [value for process in processes for value in process[name]]
        low, middle, high = statistics.quantiles(values, n=4)
        rows.append([name, f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    return rows


def _measure(model: Path) -> dict[str, list[float]]:
    alone, together = _Rows(model), _Rows(model)
    together.admit([5 + place % 50 for place in range(READ_TOKENS)])
    together.lengthen(COPIES)
    for engine in (alone, together):
        for row in range(SHORT_ROWS):
            engine.admit([6 + row, *range(1, SHORT_TOKENS)])
    figures: dict[str, list[float]] = {}
    for turn in range(TURNS + 1):
        alone_s, _, _ = alone.turn()
        together_s, long_s, long_tokens = together.turn()
        if turn == 0:
            continue  # It warms up.
        for name, value in {
            "step of short rows alone, ms": 1000 * alone_s / STEPS,
            _RATIO: together_s / alone_s,
            "time of the long row / time of the short": long_s / (together_s - long_s),
            "step of the long row, ms": 1000 * long_s / max(1, long_tokens),
            "tokens of the long row in 100 steps of the short": 100 * long_tokens / STEPS,
        }.items():
            figures.setdefault(name, []).append(value)
    return figures


class _Rows:
    """An engine with rows that never end."""

    def __init__(self, model: Path) -> None:
        from tests.support.rigs.engine_rig import EngineRunner, spec_of

        # No prompt is to be held back for the rows that decode.
        self._runner = EngineRunner(spec_of(model, max_decode_stall_s=10))
        self._sequence_ids: list[int] = []

    def admit(self, prompt: Sequence[int]) -> None:
        """Add a row, and wait until it decodes."""
        from tests.support.rigs.engine_rig import GREEDY

        sequence_id = self._runner.admit(prompt, GREEDY, _ENDLESS)
        while not self._runner.tokens[sequence_id]:
            self._runner.step()
        self._sequence_ids.append(sequence_id)

    def lengthen(self, times: int) -> None:
        """Make the only row so many times as long."""
        generator: Any = self._runner.generator
        (bucket,) = generator._rows._buckets._buckets
        for layer in bucket.prompt_cache:
            length = layer.offset
            layer.keys = mx.tile(layer.keys[:, :, :length], (1, 1, times, 1))
            layer.values = mx.tile(layer.values[:, :, :length], (1, 1, times, 1))
            layer.offset = length * times
            mx.eval(layer.keys, layer.values)
        bucket.rows[0].tokens *= times

    def turn(self) -> tuple[float, float, int]:
        """Step until the last row has made its tokens of a turn. Returns how long that took, how
        much of this the steps took in which the first row alone made a token, and how many it
        made."""
        first, last = self._sequence_ids[0], self._runner.tokens[self._sequence_ids[-1]]
        until, took_s, first_s, first_tokens = len(last) + STEPS, 0.0, 0.0, 0
        while len(last) < until:
            began_s = time.perf_counter()
            made = {token.sequence_id for token in self._runner.step().tokens}
            step_s = time.perf_counter() - began_s
            took_s += step_s
            first_tokens += first in made
            first_s += step_s * (made == {first})
        return took_s, first_s, first_tokens


if __name__ == "__main__":
    main()
