"""What `lmx bench` prints and writes: tables, and a file that holds no names or addresses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console

from lmx.supervisor.cli.bench.figures import Figures, Percentiles, Spread, figures_of
from lmx.supervisor.cli.bench.machine import machine_facts, model_name
from lmx.supervisor.cli.bench.rounds import Measured
from lmx.supervisor.cli.bench.scenarios import Phase
from lmx.supervisor.cli.bench.traffic import Target
from lmx.supervisor.cli.views.table import Column, model_table
from lmx.supervisor.decisions.ledger import format_bytes

_FORMAT: Final = 1


def figures_by_phase(measured: Measured) -> dict[Phase, dict[str, list[Figures]]]:
    """Return the figures of each phase and server."""
    found: dict[Phase, dict[str, list[Figures]]] = {}
    for (phase, label), runs in measured.runs.items():
        if any(run.samples for run in runs):
            found.setdefault(phase, {})[label] = figures_of(runs)
    return found


def print_tables(console: Console, measured: Measured, targets: Sequence[Target]) -> None:
    """Print a table for each phase, and what there is to say of errors and counts."""
    for phase, servers in figures_by_phase(measured).items():
        console.print(phase.name, style="bold", markup=False)
        console.print(model_table(_columns(servers), console.width))
        for label, kinds in servers.items():
            for error, count in kinds[0].errors.items():
                words = f"{label}: {count} of {kinds[0].requests} requests: {error}"
                console.print(words, style="red", markup=False)
        console.print()
    console.print(
        "TOKENS/S: the median of the rounds, and their least and most. FIRST and NEXT TOKEN: p50, "
        "p95, p99 of all requests.", style="dim",
    )  # fmt: skip
    for line in notes(measured, targets):
        console.print(line, markup=False)


def notes(measured: Measured, targets: Sequence[Target]) -> list[str]:
    """Return what a reader of the figures must know."""
    lines = []
    uncounted = {
        label for servers in figures_by_phase(measured).values()
        for label, kinds in servers.items() if kinds[0].not_counted
    }  # fmt: skip
    for target in targets:
        if target.label in measured.given_up:
            lines.append(f"{target.label} answered nothing in a whole phase, and was not asked "
                         "after that.")  # fmt: skip
        if target.label in uncounted:
            lines.append(f"{target.label} did not count the tokens of all answers (usage): the "
                         "pieces of their text are counted instead.")  # fmt: skip
    if measured.is_late:
        lines.append("This was too slow for the time: not all was measured. More --seconds do.")
    if measured.is_interrupted:
        lines.append("Interrupted: these are the requests that ended before.")
    return lines


def _columns(servers: Mapping[str, Sequence[Figures]]) -> list[Column]:
    rows = [(label, each) for label, kinds in servers.items() for each in kinds]

    def cells(words: Callable[[Figures], str]) -> tuple[str, ...]:
        return tuple(words(each) for _, each in rows)

    names = (label if each is servers[label][0] else f"  {each.kind}" for label, each in rows)
    return [
        Column("SERVER", tuple(names), right=False),
        Column("REQUESTS", cells(lambda one: f"{one.requests:,}"), leave=3),
        Column("FAILED", cells(lambda one: f"{sum(one.errors.values()):,}"), leave=4),
        Column("TOKENS/S", cells(lambda one: _rate(one.tokens_per_s))),
        Column("FIRST TOKEN, ms", cells(lambda one: _milliseconds(one.first_token_s))),
        Column("NEXT TOKEN, ms", cells(lambda one: _milliseconds(one.next_token_s))),
        Column("CPU ms/TOKEN", cells(lambda one: _cpu(one.cpu_ms_per_token)), leave=2),
        Column("MEMORY", cells(lambda one: _size(one.memory_bytes)), leave=1),
    ]


def _rate(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:.1f} ({spread.least:.1f}-{spread.most:.1f})"


def _cpu(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f}"


def _size(count: float | None) -> str:
    return "-" if count is None else format_bytes(count)


def _milliseconds(found: Percentiles | None) -> str:
    if found is None:
        return "-"
    return " ".join(f"{1000 * each:.0f}" if each >= 0.01 else f"{1000 * each:.1f}"
                    for each in (found.p50, found.p95, found.p99))  # fmt: skip


def file_content(
    measured: Measured, targets: Sequence[Target], seconds: float, rounds: int
) -> dict[str, Any]:
    """Return what is written for other people and programs. Servers stand in it by their labels."""
    return {
        "format": _FORMAT,
        "machine": machine_facts(),
        "seconds": seconds,
        "rounds": {"planned": rounds, "done": measured.rounds},
        "servers": [
            {"label": one.label, "software": one.software, "model": model_name(one.model)}
            for one in targets
        ],
        "phases": [
            {
                "scenario": phase.scenario, "phase": phase.name, "clients": len(phase.clients),
                "server": label, "figures": [asdict(one) for one in kinds],
            }
            for phase, servers in figures_by_phase(measured).items()
            for label, kinds in servers.items()
        ],
        "notes": notes(measured, targets),
    }  # fmt: skip
