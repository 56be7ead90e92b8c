"""One checkout measured in turns with others: each by a process of its own, with its own code and
the rigs that know it."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_ONE = "--one"


def asked() -> list[Path]:
    """Return this checkout, and those that the command names."""
    return [ROOT, *(Path(name).resolve() for name in sys.argv[1:])]


def measured_one(measure: Callable[..., Any]) -> bool:
    """Measure and print the figures, if that is what this process was started for by
    :func:`in_turns`. Returns whether it was."""
    if sys.argv[1:2] != [_ONE]:
        return False
    print(json.dumps(measure(*map(Path, sys.argv[2:]))))
    return True


def in_turns(
    benchmark: str, checkouts: Sequence[Path], turns: int, *arguments: Path
) -> dict[Path, list[Any]]:
    """Run the file ``benchmark`` for each checkout in each turn; return all that its ``measure``
    has returned, as it comes out of JSON. ``arguments`` are those of ``measure``."""
    found: dict[Path, list[Any]] = {checkout: [] for checkout in checkouts}
    for _ in range(turns):
        for checkout in checkouts:
            found[checkout].append(_run(benchmark, checkout, arguments))
    return found


def median_of(turns: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the median of a figure over all turns."""
    return statistics.median(turn[name] for turn in turns)


def print_medians(found: Mapping[Path, Sequence[Mapping[str, float]]], digits: int) -> None:
    """Print each figure of each checkout: its median, its least and its most."""
    for checkout, turns in found.items():
        for name in turns[0]:
            values = [turn[name] for turn in turns]
            print(
                f"{checkout.name:12} {name:58} {median_of(turns, name):8.{digits}f} "
                f"({min(values)} to {max(values)})"
            )


def _run(benchmark: str, checkout: Path, arguments: Sequence[Path]) -> Any:
    own = checkout / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as packages:
        (Path(packages) / "lmx").symlink_to(checkout)
        tests = Path(packages) / "tests"
        tests.mkdir()
        (tests / "__init__.py").touch()
        (tests / "bench").symlink_to(ROOT / "tests" / "bench")
        (tests / "support").symlink_to(checkout / "tests" / "support")
        module = f"tests.bench.{Path(benchmark).stem}"
        done = subprocess.run(
            [own if own.exists() else sys.executable, "-m", module, _ONE, *arguments],
            env=os.environ | {"PYTHONPATH": packages},
            cwd=packages,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])
