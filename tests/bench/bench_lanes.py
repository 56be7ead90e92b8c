"""How fast rows decode: rows of one length, and short ones beside a row of 16,000 tokens.

The model is tiny, so that what the host does shows. ``make bench-lanes`` measures this checkout;
``AGAINST=FOLDER``, another checkout, is measured in turns with it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from engine_rig import GREEDY, EngineRunner, spec_of
from tiny_models import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
TURNS = 5
EQUAL_ROWS = (1, 4, 16)
SHORT_ROWS = 4
SHORT_TOKENS = 64
LONG_TOKENS = 16_000
WARM_UP_STEPS = 20
STEPS = 300
_ONE = "--one"
_ENDLESS = 1_000_000


def main() -> None:
    """Print steps in a second, and by how much a long row slows down the short ones."""
    if sys.argv[1:2] == [_ONE]:
        print(json.dumps(_measure(Path(sys.argv[2]))))
        return
    checkouts = [ROOT, *(Path(folder).resolve() for folder in sys.argv[1:])]
    found: dict[Path, list[dict[str, float]]] = {checkout: [] for checkout in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model", "llama")
        for _ in range(TURNS):
            for checkout in checkouts:
                found[checkout].append(_one(checkout, model))
    for checkout, turns in found.items():
        print(f"\n{checkout}")
        for name in turns[0]:
            values = sorted(turn[name] for turn in turns)
            median = statistics.median(values)
            print(f"  {name:45} {median:8.2f}  ({values[0]:.2f} to {values[-1]:.2f})")


def _one(checkout: Path, model: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as packages:
        (Path(packages) / "lmx").symlink_to(checkout)
        search = [packages, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, __file__, _ONE, str(model)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(search)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(model: Path) -> dict[str, float]:
    # No prompt is to be held back for the rows that decode.
    runner = EngineRunner(spec_of(model, max_decode_stall_s=10))
    figures = {}
    for rows in EQUAL_ROWS:
        figures[f"steps/s of {rows} rows"] = 1 / _token_s(runner, rows)
        runner.clear()
    alone_s = _token_s(runner, SHORT_ROWS)
    runner.clear()
    long = runner.admit([5 + place % 50 for place in range(LONG_TOKENS)], GREEDY, _ENDLESS)
    _until(runner, lambda: bool(runner.tokens[long]))
    before = len(runner.tokens[long])
    beside_s = _token_s(runner, SHORT_ROWS)
    figures["step of short rows beside a long one / alone"] = beside_s / alone_s
    figures["tokens of the long row in a step of the short"] = (
        len(runner.tokens[long]) - before
    ) / (WARM_UP_STEPS + STEPS)
    return figures


def _token_s(runner: EngineRunner, rows: int) -> float:
    """Return how long each of so many short rows waits for a token."""
    prompts = [[6 + row, *range(1, SHORT_TOKENS)] for row in range(rows)]
    row_ids = [runner.admit(prompt, GREEDY, _ENDLESS) for prompt in prompts]

    def made() -> int:
        return min(len(runner.tokens[row_id]) for row_id in row_ids)

    _until(runner, lambda: made() >= WARM_UP_STEPS)
    first, began_s = made(), time.perf_counter()
    _until(runner, lambda: made() >= first + STEPS)
    return (time.perf_counter() - began_s) / (made() - first)


def _until(runner: EngineRunner, done: Callable[[], bool]) -> None:
    while not done():
        runner.step()


if __name__ == "__main__":
    main()
