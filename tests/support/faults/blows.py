"""Blows from outside against one of lmx's processes: which, how, and when."""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from tests.support.models.tiny_zoo import EMBEDS, HEARS, SEES, TEXT
from tests.support.rigs.rig import Rig, command_of, wait_until

PAUSED: Final = "PAUSED"
"""SIGSTOP, and SIGCONT after some seconds: the process was slow, and nobody may be hurt."""

_HOW: Final = ("KILL", "STOP", "SEGV", PAUSED, "ABRT")
_TARGETS: Final = (
    "worker", "router", "worker", "decoder", "worker", "renderer", "worker", "supervisor", "worker",
    "inspector",
)  # fmt: skip
_MODELS: Final = (*TEXT, SEES, HEARS, EMBEDS)
_PAUSE_S: Final = (1.0, 6.0)
"""Well below every deadline."""
_HELD_S: Final = 1.0
_MODULES: Final = {
    "decoder": "lmx.worker.media.decoding.main",
    "renderer": "lmx.worker.templates.render_main",
    "inspector": "lmx.supervisor.memory.inspect_main",
}


@dataclass(frozen=True)
class Blow:
    """``model``: whose worker it is, or has the target. ``after``: the part of
    all answers under way, from 0 to 1, that has come by then. ``pause_s``: until SIGCONT."""

    target: str
    how: str
    model: str
    after: float
    pause_s: float

    @property
    def deadly(self) -> bool:
        """Whether the process ends by it, or must be ended."""
        return self.how != PAUSED

    def __str__(self) -> str:
        of = f" of {self.model}" if self.target in ("worker", "decoder", "renderer") else ""
        return f"{self.how} of the {self.target}{of} at {self.after:.0%}"


def draw_blows(seed: int, rounds: int) -> list[Blow]:
    """Draw one blow for each round: every second one is against a worker, and all kinds of
    targets, signals and models have their turn."""
    draw = random.Random(seed)
    dealt = {target: seed + place for place, target in enumerate(dict.fromkeys(_TARGETS))}
    workers = [model for _ in range(rounds) for model in draw.sample(_MODELS, len(_MODELS))]
    blows = []
    for number in range(rounds):
        target = _TARGETS[(number + seed) % len(_TARGETS)]
        how = _HOW[dealt[target] % len(_HOW)]
        dealt[target] += 1
        model = {"worker": workers[number], "renderer": draw.choice(TEXT)}.get(target, SEES)
        blows.append(Blow(target, how, model, draw.uniform(0, 0.7), draw.uniform(*_PAUSE_S)))
    return blows


def hold(lmx: Rig, blow: Blow) -> list[psutil.Process]:
    """Return the processes that are to be hit. Those that have something to do for some
    milliseconds alone are stopped, so that what comes now waits for them."""
    victims = _find(lmx, blow)
    if blow.target in _MODULES:
        for victim in victims:
            _send(victim, signal.SIGSTOP)
    return victims


def deal(blow: Blow, victims: Sequence[psutil.Process]) -> None:
    """Deal a blow, and wait for the end of the pause."""
    numbers = [signal.SIGSTOP if blow.how == PAUSED else signal.Signals[f"SIG{blow.how}"]]
    if blow.target in _MODULES:
        time.sleep(_HELD_S)
        if blow.deadly and blow.how != "STOP":
            numbers.append(signal.SIGCONT)
    for number in numbers:
        for victim in victims:
            _send(victim, number)
    if blow.how == PAUSED:
        time.sleep(blow.pause_s)
        for victim in victims:
            _send(victim, signal.SIGCONT)


def _find(lmx: Rig, blow: Blow) -> list[psutil.Process]:
    status = lmx.status()
    match blow.target:
        case "supervisor" | "router":
            return [psutil.Process(status[blow.target]["pid"])]
        case "worker":
            return [psutil.Process(lmx.worker(blow.model)["pid"])]
        case "inspector":
            above = status["supervisor"]["pid"]
        case _:
            above = lmx.worker(blow.model)["pid"]
    found: list[psutil.Process] = wait_until(
        lambda: list(_below(above, _MODULES[blow.target])), f"there is a {blow.target}", 120
    )
    return found


def _below(pid: int, module: str) -> Iterator[psutil.Process]:
    for child in psutil.Process(pid).children(recursive=True):
        if module in command_of(child):
            yield child


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return  # it was faster
