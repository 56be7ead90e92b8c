"""Runs the phases of `lmx bench`, in turns on each server, until all rounds are done or Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from lmx.supervisor.cli.bench.figures import Run, Sample
from lmx.supervisor.cli.bench.processes import ServerProcesses
from lmx.supervisor.cli.bench.scenarios import Phase, in_order
from lmx.supervisor.cli.bench.traffic import Target, run_phase

_LATEST: Final = 3.0
"""Times the time that was said: then the measuring ends, however much is done."""


@dataclass
class Measured:
    """What was measured: for each phase and server the runs of all rounds that were done."""

    runs: dict[tuple[Phase, str], list[Run]] = field(default_factory=dict)
    rounds: int = 0
    """Rounds that are whole."""
    given_up: list[str] = field(default_factory=list)
    """Servers that answered nothing in a whole phase, and are not asked since."""
    is_interrupted: bool = False
    is_late: bool = False
    """The server was so slow that not all was measured."""


async def measure(
    http: aiohttp.ClientSession,
    targets: Sequence[Target],
    phases: Sequence[Phase],
    rounds: int,
    *,
    seed: str,
    limit_s: float,
    progress: Callable[[str], None],
) -> Measured:
    """Ask all servers in all rounds, one at a time, and return what was measured: until the first
    Ctrl-C (the second one ends the process), or until it has taken three times as long as it
    should, and a request more."""
    measured = Measured()
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(
        _all_rounds(http, targets, phases, rounds, seed, limit_s, progress, measured)
    )

    def interrupt() -> None:
        measured.is_interrupted = True
        work.cancel()
        loop.remove_signal_handler(signal.SIGINT)

    planned_s = rounds * len(targets) * sum(phase.seconds for phase in phases)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        async with asyncio.timeout(_LATEST * planned_s + limit_s):
            await work
    except TimeoutError:
        measured.is_late = True
    except asyncio.CancelledError:
        if not measured.is_interrupted:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return measured


async def _all_rounds(
    http: aiohttp.ClientSession,
    targets: Sequence[Target],
    phases: Sequence[Phase],
    rounds: int,
    seed: str,
    limit_s: float,
    progress: Callable[[str], None],
    measured: Measured,
) -> None:
    processes = [await asyncio.to_thread(ServerProcesses.at, one.remote.url) for one in targets]
    for number in range(rounds):
        for phase in phases:
            for place in in_order(len(targets), number):
                target = targets[place]
                if target.label in measured.given_up:
                    continue
                progress(f"round {number + 1} of {rounds}: {target.label}, {phase.name}")
                runs = measured.runs.setdefault((phase, target.label), [])
                own = f"{seed} {place} {number} {phase.name}"
                await run_once(http, target, phase, own, limit_s, processes[place], runs)
                if runs and runs[-1].samples and all(one.error for one in runs[-1].samples):
                    measured.given_up.append(target.label)
        measured.rounds += 1


async def run_once(
    http: aiohttp.ClientSession,
    target: Target,
    phase: Phase,
    seed: str,
    limit_s: float,
    processes: ServerProcesses | None,
    runs: list[Run],
) -> None:
    """Have a server answer a phase once, and append the run, also if this is cancelled."""
    samples: list[Sample] = []
    before_s = 0.0 if processes is None else processes.cpu_s()
    try:
        await run_phase(http, target, phase, seed, limit_s, samples)
    finally:
        if processes is None:
            runs.append(Run(tuple(samples)))
        else:
            # Less than before: a process has ended, and its time is lost.
            used_s = processes.cpu_s() - before_s
            memory_bytes = processes.memory_bytes()
            runs.append(Run(tuple(samples), used_s if used_s >= 0 else None, memory_bytes))
