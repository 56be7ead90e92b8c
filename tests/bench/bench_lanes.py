"""How much a row of 16,000 tokens slows down short ones that decode beside it, and how fast it is.

Two engines with the same tiny model take short turns in one process, so that both see the same
machine: one decodes short rows alone, the other has the long row beside them. What comes of a turn
is compared within it, and medians of many turns are given. ``make bench-lanes`` measures this
checkout; ``AGAINST=FOLDER``, another checkout, is measured in turns with it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from checkouts import asked, in_turns, measured_one
from tiny_models import make_tiny_model

PROCESSES = 3
TURNS = 30
STEPS = 60
"""In a turn, each engine makes so many tokens of each short row."""
SHORT_ROWS = 4
SHORT_TOKENS = 64
LONG_TOKENS = 16_000
_ENDLESS = 1_000_000
_RATIO = "step of short rows: beside the long one / alone"


def main() -> None:
    """Print medians, and between what the middle half of all turns is."""
    if measured_one(_measure):
        return
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model", "llama")
        found = in_turns(__file__, asked(), PROCESSES, model)
    for checkout, processes in found.items():
        print(f"\n{checkout}")
        for name in processes[0]:
            values = [value for process in processes for value in process[name]]
            low, middle, high = statistics.quantiles(values, n=4)
            print(f"  {name:50} {middle:7.2f}  ({low:.2f} to {high:.2f})")
        middles = [f"{statistics.median(process[_RATIO]):.2f}" for process in processes]
        print(f"  that ratio in each process: {', '.join(middles)}")


def _measure(model: Path) -> dict[str, list[float]]:
    alone, beside = _Rows(model), _Rows(model)
    beside.admit([5 + place % 50 for place in range(LONG_TOKENS)])
    for engine in (alone, beside):
        for row in range(SHORT_ROWS):
            engine.admit([6 + row, *range(1, SHORT_TOKENS)])
    figures: dict[str, list[float]] = {}
    for turn in range(TURNS + 1):
        alone_s, _, _ = alone.turn()
        beside_s, long_s, long_tokens = beside.turn()
        if turn == 0:
            continue  # It warms up.
        for name, value in {
            "step of short rows alone, ms": 1000 * alone_s / STEPS,
            _RATIO: beside_s / alone_s,
            "time of the long row / time of the short": long_s / (beside_s - long_s),
            "step of the long row, ms": 1000 * long_s / max(1, long_tokens),
            "tokens of the long row in 100 steps of the short": 100 * long_tokens / STEPS,
        }.items():
            figures.setdefault(name, []).append(value)
    return figures


class _Rows:
    """An engine with rows that never end."""

    def __init__(self, model: Path) -> None:
        from engine_rig import EngineRunner, spec_of

        # No prompt is to be held back for the rows that decode.
        self._runner = EngineRunner(spec_of(model, max_decode_stall_s=10))
        self._row_ids: list[int] = []

    def admit(self, prompt: Sequence[int]) -> None:
        """Add a row, and wait until it decodes."""
        from engine_rig import GREEDY

        row_id = self._runner.admit(prompt, GREEDY, _ENDLESS)
        while not self._runner.tokens[row_id]:
            self._runner.step()
        self._row_ids.append(row_id)

    def turn(self) -> tuple[float, float, int]:
        """Step until the last row has made its tokens of a turn. Returns how long that took, how
        much of this the steps took in which the first row alone made a token, and how many it
        made."""
        first, last = self._row_ids[0], self._runner.tokens[self._row_ids[-1]]
        until, took_s, first_s, first_tokens = len(last) + STEPS, 0.0, 0.0, 0
        while len(last) < until:
            began_s = time.perf_counter()
            made = {token.row_id for token in self._runner.step().tokens}
            step_s = time.perf_counter() - began_s
            took_s += step_s
            first_tokens += first in made
            first_s += step_s * (made == {first})
        return took_s, first_s, first_tokens


if __name__ == "__main__":
    main()
