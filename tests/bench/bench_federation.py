"""What the choice among machines gains: a simulation over the real table of
``router/peers/choice.py``, and nothing else of lmx. Discrete events, no clock, the same figures
each time.

    python -m tests.bench.bench_federation            prints the table
    python -m tests.bench.bench_federation --write    puts it into docs/scaling.md

What is simulated: conversations that grow by turns, each with one of its model's shared system
prompts; models by Zipf; arrivals in bursts. A request comes in at any machine, which knows the
others as they were up to a second ago, and what it has sent since. A machine computes prompts at a
speed, and each row's tokens at another; it has rows for each model, a line, memory for some of the
models, and a prefix cache of some conversations for each of them.
"""

import heapq
import itertools
import random
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles
from typing import Final

from lmx.router.peers.choice import Candidate, ranked

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
BEGIN: Final = "<!-- made by `make bench-federation` -->\n"
END: Final = "<!-- end -->\n"

MACHINES: Final = (2, 3, 8, 32, 200)
MODELS: Final = 12
SIZES: Final = (4, 8, 8, 16, 20)
"""GB of each model, by turns."""
MEMORY: Final = 48
"""GB of each machine."""
ROWS: Final = 4
CONVERSATIONS_KEPT: Final = 24
"""How many conversations the prefix cache of a model holds."""
PREFILL: Final = 600.0
"""Tokens a second."""
DECODE: Final = 40.0
"""Tokens a second, of each row."""
LOAD_S: Final = 0.6
"""Seconds for each GB."""
SYSTEM: Final = 1500
"""Tokens of a shared system prompt; each model has some."""
SYSTEMS: Final = 4
SAID: Final = 250
ANSWERED: Final = 200
TURNS: Final = 8.0
THINKS_S: Final = 20.0
PER_MACHINE_S: Final = 0.016
"""How many conversations begin a second for each machine."""
REQUESTS: Final = 12_000
BLOCK: Final = 128


@dataclass(slots=True)
class Request:
    at_s: float
    conversation: int
    model: int
    system: int
    before: int
    """Tokens of the turn before, 0 for a first one."""
    tokens: int
    answer: int
    sent_s: float = 0.0


def trace(machines: int, seed: int) -> list[Request]:
    """Return the requests in their order."""
    chance = random.Random(seed)
    weights = [1 / (place + 1) ** 1.1 for place in range(MODELS)]
    found: list[Request] = []
    now_s, burst = 0.0, 1.0
    for conversation in itertools.count():
        if conversation % (10 * machines) == 0:
            burst = chance.choice((0.5, 0.7, 1.0, 2.0))
        now_s += chance.expovariate(PER_MACHINE_S * machines * burst)
        model = chance.choices(range(MODELS), weights)[0]
        system, at_s, tokens, before = chance.randrange(SYSTEMS), now_s, SYSTEM, 0
        for _ in range(1 + int(chance.expovariate(1 / (TURNS - 1)))):
            tokens += int(chance.expovariate(1 / SAID)) + 10
            answer = int(chance.expovariate(1 / ANSWERED)) + 10
            found.append(Request(at_s, conversation, model, system, before, tokens, answer))
            before, tokens = tokens, tokens + answer
            at_s += answer / DECODE + chance.expovariate(1 / THINKS_S)
        if len(found) >= REQUESTS * 1.3:
            break
    return sorted(found, key=lambda one: one.at_s)[:REQUESTS]


@dataclass(slots=True)
class Loaded:
    """A model on a machine."""

    ready_s: float
    used_s: float
    running: int = 0
    line: deque[Request] = field(default_factory=deque)
    held: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Tokens that the prefix cache has of each conversation; system prompts by -1, -2, ..."""

    def cached(self, request: Request) -> int:
        """Return how many of the request's tokens are held."""
        own = min(self.held.get(request.conversation, 0), request.tokens)
        return own or min(self.held.get(-1 - request.system, 0), request.tokens)

    def hold(self, request: Request) -> None:
        for key, tokens in ((-1 - request.system, SYSTEM), (request.conversation, request.tokens)):
            self.held[key] = tokens
            self.held.move_to_end(key)
        while len(self.held) > CONVERSATIONS_KEPT:
            self.held.popitem(last=False)


@dataclass(slots=True)
class Machine:
    models: dict[int, Loaded] = field(default_factory=dict)
    waiting: deque[Request] = field(default_factory=deque)
    """Requests for models for which nothing can be evicted just now."""

    @property
    def free(self) -> int:
        return MEMORY - sum(size_of(model) for model in self.models)

    def busy(self) -> int:
        return len(self.waiting) + sum(one.running + len(one.line) for one in self.models.values())


def size_of(model: int) -> int:
    return SIZES[model % len(SIZES)]


Choose = Callable[["Simulation", Request], int]


class Simulation:
    """Machines, and what became of the requests."""

    def __init__(self, count: int, choose: Choose, seed: int = 1) -> None:
        self.machines = [Machine() for _ in range(count)]
        self.chance = random.Random(seed)
        self.turn = 0
        self.now_s = 0.0
        self.seen: list[tuple[dict[int, tuple[int, bool]], int]] = []
        """What each machine said last: of each model the requests, and whether it is loaded; and
        its free memory."""
        self.seen_s = -10.0
        self.sent: list[Counter[tuple[int, int]]] = [Counter() for _ in range(count)]
        self.cached = self.reusable = self.evicted = self.loads = 0
        self.waits_s: list[float] = []
        self.first_s: list[float] = []
        self._choose = choose
        self._events: list[tuple[float, int, int, int]] = []
        self._numbers = itertools.count()

    def run(self, requests: Sequence[Request]) -> None:
        for request in requests:
            while self._events and self._events[0][0] <= request.at_s:
                self._end(*heapq.heappop(self._events))
            self.now_s = request.at_s
            if self.now_s - self.seen_s >= 1.0:
                self._look()
            self._arrive(self._choose(self, request), request)
        while self._events:
            self._end(*heapq.heappop(self._events))

    def _look(self) -> None:
        self.seen_s = self.now_s
        self.seen = [
            (
                {
                    model: (one.running + len(one.line), one.ready_s <= self.now_s)
                    for model, one in machine.models.items()
                },
                machine.free,
            )
            for machine in self.machines
        ]
        for sent in self.sent:
            sent.clear()

    def _arrive(self, number: int, request: Request) -> None:
        machine = self.machines[number]
        request.sent_s = self.now_s
        loaded = machine.models.get(request.model) or self._load(machine, request.model)
        if loaded is None:
            machine.waiting.append(request)
            return
        loaded.line.append(request)
        self._begin(number, request.model, loaded)

    def _load(self, machine: Machine, model: int) -> Loaded | None:
        idle = sorted(
            (one.used_s, name)
            for name, one in machine.models.items()
            if not one.running and not one.line
        )
        need = size_of(model) - machine.free
        leaving = []
        for _, name in idle:
            if need <= 0:
                break
            need -= size_of(name)
            leaving.append(name)
        if need > 0:
            return None
        for name in leaving:
            del machine.models[name]
        self.evicted += len(leaving)
        self.loads += 1
        ready_s = self.now_s + LOAD_S * size_of(model)
        loaded = machine.models[model] = Loaded(ready_s, self.now_s)
        return loaded

    def _begin(self, number: int, model: int, loaded: Loaded) -> None:
        while loaded.line and loaded.running < ROWS:
            request = loaded.line.popleft()
            loaded.running += 1
            loaded.used_s = self.now_s
            begins_s = max(self.now_s, loaded.ready_s)
            cached = loaded.cached(request)
            loaded.hold(request)
            self.cached += cached
            self.reusable += request.before or SYSTEM
            first_s = begins_s + (request.tokens - cached) / PREFILL
            self.waits_s.append(begins_s - request.sent_s)
            self.first_s.append(first_s - request.sent_s)
            ends_s = first_s + request.answer / DECODE
            heapq.heappush(self._events, (ends_s, next(self._numbers), number, model))

    def _end(self, at_s: float, _: int, number: int, model: int) -> None:
        self.now_s = at_s
        machine = self.machines[number]
        loaded = machine.models[model]
        loaded.running -= 1
        loaded.used_s = at_s
        self._begin(number, model, loaded)
        for _ in range(len(machine.waiting)):
            request = machine.waiting.popleft()
            found = machine.models.get(request.model) or self._load(machine, request.model)
            if found is None:
                machine.waiting.append(request)
                continue
            found.line.append(request)
            self._begin(number, request.model, found)


def by_turns(simulation: Simulation, _: Request) -> int:
    simulation.turn = (simulation.turn + 1) % len(simulation.machines)
    return simulation.turn


def least_loaded(simulation: Simulation, _: Request) -> int:
    busy = [machine.busy() for machine in simulation.machines]
    least = min(busy)
    return simulation.chance.choice([n for n, count in enumerate(busy) if count == least])


def warm(simulation: Simulation, request: Request) -> int:
    """The least loaded machine that has the model and no line for it, else the least loaded
    one."""
    having = {
        n: loaded.running + len(loaded.line)
        for n, machine in enumerate(simulation.machines)
        if (loaded := machine.models.get(request.model)) is not None
    }
    free = {n: count for n, count in having.items() if count < ROWS}
    return min(free, key=lambda n: (free[n], n)) if free else least_loaded(simulation, request)


def lmx(simulation: Simulation, request: Request) -> int:
    front = simulation.chance.randrange(len(simulation.machines))
    sent = simulation.sent[front]
    first, *_ = ranked(_candidates(simulation, request, front, sent), request.tokens // BLOCK)
    number = int(first[0].machine)
    sent[number, request.model] += 1
    return number


def _candidates(
    simulation: Simulation, request: Request, front: int, sent: Counter[tuple[int, int]]
) -> Iterator[Candidate]:
    for number, (models, free) in enumerate(simulation.seen):
        running, is_loaded = models.get(request.model, (0, False))
        own = simulation.machines[number].models.get(request.model)
        yield Candidate(
            machine=f"{number:03}",
            model_id="",
            own=number == front,
            loaded=is_loaded,
            loads=request.model in models and not is_loaded,
            rows=ROWS,
            running=running + sent[number, request.model],
            free_bytes=free,
            needed_bytes=size_of(request.model),
            held_blocks=0 if own is None else own.cached(request) // BLOCK,
        )


WAYS: Final[dict[str, Choose]] = {
    "by turns": by_turns,
    "least loaded": least_loaded,
    "least loaded that has the model": warm,
    "lmx": lmx,
}


def table() -> str:
    """Return the table in Markdown."""
    lines = [
        "| machines | way | prefix found | in line, mean s | first token, mean s | p95 s | "
        "loads per 1000 | evictions per 1000 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for count in MACHINES:
        for name, choose in WAYS.items():
            simulation = Simulation(count, choose)
            simulation.run(trace(count, seed=7))
            p95 = quantiles(simulation.first_s, n=20)[-1]
            thousand = len(simulation.first_s) / 1000
            lines.append(
                f"| {count} | {name} | {simulation.cached / simulation.reusable:.0%} | "
                f"{mean(simulation.waits_s):.1f} | {mean(simulation.first_s):.1f} | {p95:.1f} | "
                f"{simulation.loads / thousand:.0f} | {simulation.evicted / thousand:.0f} |"
            )
            print(lines[-1], file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the table, and put it where it is wanted."""
    made = table()
    if "--write" not in sys.argv[1:]:
        print(made)
        return
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:begin] + made + text[end:])


if __name__ == "__main__":
    main()
