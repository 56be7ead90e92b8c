"""A model that is divided among two processes, of one machine or of two, lives and dies as one,
next to streams of another."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import pytest

from lmx.protocol.messages.pairing import OfferPairing, PairingOffer
from tests.support.faults.cut_network import CutNetwork
from tests.support.models.text_models import make_text_model
from tests.support.rigs.rig import (
    QUICK,
    Rig,
    Stream,
    ask,
    command_of,
    http,
    rig,
    scripted,
    serving_too,
    wait_until,
    whole,
)

pytestmark = pytest.mark.long

ROUNDS: Final = int(os.environ.get("LMX_TEST_ROUNDS", "0"))
SEED: Final = int(os.environ.get("LMX_TEST_SEED", "1"))
CODES: Final = {"worker_crashed", "worker_hung", "worker_killed", "worker_lost", "engine_error"}
CUT: Final = "cut"
"""Instead of a signal: nothing comes through between the ranks any more."""

CONTEXT_TOKENS: Final = 32_768
QUESTION: Final = ask("divided", "count", max_tokens=80, temperature=0, ignore_eos=True)
ENDLESS: Final = QUESTION | {"max_tokens": 30_000}
_NUMBERS: Final = [f"{number} " for number in range(100)]
NUMBERED: Final = (ask("other", {"pieces": _NUMBERS, "step_s": 0.02}), "".join(_NUMBERS))
"""What the other model says, in two seconds. No token of it can be lost or come twice unseen."""

KINDS: Final = (signal.SIGKILL, signal.SIGSTOP, CUT)


STARTED_S: Final = 240.0
"""Two processes import MLX, on a machine that is busy with something else."""

TIMING: Final = {
    **QUICK, "load_stall_timeout_s": 60.0, "stall_timeout_s": 12.0, "beat_timeout_s": 10.0
}  # fmt: skip
"""A rank waits for the other and for a processor: of one on another machine nobody sees which."""


@dataclass(frozen=True)
class Machines:
    """The machine with rank 0, the one with rank 1, which may be the same, and what is between
    the ranks."""

    desk: Rig
    studio: Rig
    network: CutNetwork


def make_model(folder: Path) -> dict[str, Any]:
    """Write a model, and return its configuration."""
    make_text_model(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT_TOKENS
    (folder / "config.json").write_text(json.dumps(config))
    return {"id": "divided", "source": str(folder), "memory_bytes": "1 GiB"}


@pytest.fixture(scope="module")
def network() -> Iterator[CutNetwork]:
    found = CutNetwork()
    with found.running():
        yield found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, network: CutNetwork) -> Iterator[Machines]:
    """Both ranks on one machine."""
    model = make_model(tmp_path_factory.mktemp("ranks") / "model") | {"ranks": 2}
    config = {"models": [model, scripted("other")], "timing": TIMING}
    # What it passes on takes longer.
    with rig(config, network.variables if ROUNDS else {}) as lmx:
        yield Machines(lmx, lmx, network)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, network: CutNetwork) -> Iterator[Machines]:
    """One rank on each of two machines, which are paired."""
    model = make_model(tmp_path_factory.mktemp("hosts") / "model")
    with ExitStack() as opened:
        machines = {}
        for name, models in (
            ("studio", [model | {"preload": False}]),
            ("desk", [model | {"id": "whole"}, scripted("other")]),
        ):
            config = {"server": {"name": name}, "models": models, "timing": TIMING}
            machines[name] = opened.enter_context(rig(config, network.variables))
        desk, studio = machines["desk"], machines["studio"]
        offer: PairingOffer = studio.ask(OfferPairing())
        address = studio.url.removesuffix("/v1").removeprefix("http://")
        desk.run("pair", f"{offer.code}@{address}")
        with serving_too(desk, model | {"hosts": ["studio"]}):
            desk.run("load", "divided")
            yield Machines(desk, studio, network)


@pytest.fixture
def shared(one: Machines) -> Rig:
    """Forget how often the model has ended, so that it is started again."""
    assert one.desk.cli("reset", "divided").returncode == 0
    return one.desk


def pids(worker: dict[str, Any]) -> list[int]:
    """Return the processes of a divided model, rank 0 first."""
    return [worker["pid"], *(rank["pid"] for rank in worker["ranks"])]


def ready(lmx: Rig) -> list[int]:
    """Return the processes of the model once all of them are there."""

    def there() -> list[int] | None:
        found = pids(lmx.wait_state("divided", "ready", deadline_s=STARTED_S))
        return found if len(found) == 2 and not any(map(gone, found)) else None

    found: list[int] = wait_until(there, "two ranks", STARTED_S)
    return found


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Others:
    """Two clients of other models, which ask again as soon as their answer is there. ``asked`` are
    requests, and the text that each has to get."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *asked: tuple[dict[str, Any], str]
    ) -> None:
        self.answers = 0
        self._session = session
        self._url = url
        self._asked = (NUMBERED, *asked)
        self._ending = False

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Have them ask for as long as the block lasts; their last answers are awaited."""
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(self._ask())
            yield
            self._ending = True

    async def _ask(self) -> None:
        while not self._ending:
            for body, expected in self._asked:
                stream = Stream(self._session, self._url, body)
                await stream.ended()
                assert (stream.text, stream.errors, stream.done) == (expected, [], True)
                self.answers += 1


async def blow(
    machines: Machines, rank: int, number: signal.Signals | str, expected: str, *, busy: bool
) -> None:
    """As :func:`strike`, next to streams of another model that lack nothing."""
    async with http() as session, Others(session, machines.desk.url).asking():
        await strike(machines, rank, number, expected, busy=busy)


async def strike(
    machines: Machines, rank: int, number: signal.Signals | str, expected: str, *, busy: bool
) -> None:
    """Give one rank a signal, or cut what is between them, and see that all of them end, that every
    stream of the model gets one error, and that the model comes back."""
    lmx = machines.desk
    before = ready(lmx)
    async with http() as session:
        streams = [Stream(session, lmx.url, ENDLESS) for _ in range(2 if busy else 0)]
        for stream in streams:
            await stream.has_text(1)
        if isinstance(number, signal.Signals):
            os.kill(before[rank], number)
        else:
            machines.network.cut()
            if not busy:
                # On one machine only who uses the way notices that it is cut.
                streams = [Stream(session, lmx.url, ENDLESS)]
        for stream in streams:
            await stream.ended()
            assert [error["code"] in CODES for error in stream.errors] == [True], stream.errors
            assert stream.after_error == 0
        await asyncio.to_thread(
            wait_until, lambda: all(map(gone, before)), f"the end of {before}", 60.0
        )
        machines.network.heal()
        after = await asyncio.to_thread(ready, lmx)
        assert not set(before) & set(after)
        assert await first_answer(lmx) == expected
    done = lmx.cli("reset", "divided")
    assert done.returncode == 0, done.stderr


async def pause(lmx: Rig, rank: int) -> None:
    """Stop a rank for a moment: its model's stream has to wait, and nobody is hurt."""
    before = ready(lmx)
    async with http() as session:
        stream = Stream(session, lmx.url, QUESTION)
        await stream.has_text(1)
        os.kill(before[rank], signal.SIGSTOP)
        await asyncio.sleep(1.5)
        os.kill(before[rank], signal.SIGCONT)
        await stream.ended()
        assert (stream.errors, stream.finish_reason) == ([], "length")
    assert ready(lmx) == before


async def first_answer(lmx: Rig) -> str:
    ready(lmx)
    async with http() as session:
        settings: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
        status, answer = await whole(session, lmx.url, "divided", "say", **settings)
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])


async def test_a_rank_that_is_stopped_ends_all(one: Machines) -> None:
    expected = await first_answer(one.desk)
    await blow(one, 1, signal.SIGSTOP, expected, busy=True)


def lent(machines: Machines) -> list[dict[str, Any]]:
    """Return the ranks that the other machine runs; all that is reserved there is theirs."""
    found = machines.studio.status()["supervisor"]
    assert found["reserved_bytes"] == sum(rank["reserved_bytes"] for rank in found["lent"])
    ranks: list[dict[str, Any]] = found["lent"]
    return ranks


TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}


async def all_kinds(url: str, model: str) -> list[Any]:
    """Return what a model answers to requests of each kind: several answers to one, some at a time,
    a call of a tool, a conversation that continues, and one after another that was cancelled."""
    greedy: dict[str, Any] = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}

    async def choices(content: str, **settings: Any) -> Any:
        status, answer = await whole(session, url, model, content, **(greedy | settings))
        assert status == 200, answer
        for choice in answer["choices"]:
            for call in choice["message"].get("tool_calls") or ():
                assert call.pop("id").startswith("call_")
        return answer["choices"], answer["usage"]["prompt_tokens_details"]

    async with http() as session:
        made: list[Any] = [await choices("four", n=4, temperature=1, seed=5)]
        made += await asyncio.gather(*(choices(text) for text in ("a", "two words")))
        # How much of what one of them computed another finds is up to which one began first.
        made = [found for found, _ in made]
        settings: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "ignore_eos": False}
        called, _ = await choices("weather", **settings, max_tokens=200)
        assert called[0]["finish_reason"] == "tool_calls"
        stream = Stream(session, url, ask(model, "endless", **(greedy | {"max_tokens": 20_000})))
        await stream.has_text(5)
        await stream.hang_up()
        await choices("a long story " * 40)
        continued, details = await choices("a long story " * 40)
        assert details["cached_tokens"] > 400
        return [*made, called, continued]


async def test_two_machines_make_the_same_tokens_and_their_ranks_end_as_one(two: Machines) -> None:
    desk = two.desk
    before = ready(desk)
    (rank,) = lent(two)
    assert (rank["pid"], rank["owner"], rank["reserved_bytes"]) == (before[1], "peer-desk", 2**30)
    assert f"rank 1 (pid {before[1]} on studio" in desk.cli("show", "divided").stdout
    assert "rank 1 of 2 of divided" in two.studio.cli("status").stdout
    checked = desk.cli("doctor", "--config", str(desk.config_path)).stdout
    assert re.search(r"ok +ranks .* ms there and back, \d+ MB/s over lo, its clock", checked), (
        checked
    )
    assert "as much on each of studio" in desk.cli("estimate", "divided").stdout
    # The memory of the other machine is no part of this one's.
    figures = desk.worker("divided")
    assert figures["memory_bytes"] == pytest.approx(
        psutil.Process(before[0]).memory_info().rss, rel=0.5
    )
    made = [await all_kinds(desk.url, model) for model in ("divided", "whole")]
    assert made[0] == made[1]
    assert ready(desk) == before
    expected = await first_answer(desk)
    await blow(two, 0, CUT, expected, busy=True)
    (rank,) = lent(two)
    assert rank["pid"] == ready(desk)[1]
    assert desk.cli("unload", "divided").returncode == 0
    wait_until(lambda: not lent(two), "the memory of the other machine")
    assert gone(rank["pid"])


async def test_a_model_of_ranks_is_killed_and_kept_as_one(shared: Rig) -> None:
    lmx = shared
    before = ready(lmx)
    wait_until(lambda: lmx.worker("divided")["ranks"][0]["memory_bytes"] > 0, "its memory")
    status = lmx.worker("divided")
    assert status["memory_bytes"] > status["ranks"][0]["memory_bytes"]
    shown = lmx.cli("show", "divided").stdout
    assert f"rank 0 (pid {before[0]}" in shown and f"rank 1 (pid {before[1]}" in shown
    assert "2 ranks" in lmx.cli("status").stdout
    assert lmx.cli("kill", "divided").returncode == 0
    wait_until(lambda: all(map(gone, before)), "the end of both")


@pytest.mark.soak
def test_the_ranks_of_a_supervisor_that_died_are_kept_and_end_with_rank_0(shared: Rig) -> None:
    lmx = shared
    assert lmx.cli("load", "divided").returncode == 0
    before = ready(lmx)
    assert lmx.supervisor is not None
    os.kill(lmx.supervisor.pid, signal.SIGKILL)
    lmx.supervisor.wait()
    lmx.up()
    assert ready(lmx) == before
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: all(map(gone, before)), "the end of both")
    assert not set(ready(lmx)) & set(before)


@pytest.mark.soak
def test_a_follower_that_is_stopped_while_it_loads_is_found(shared: Rig) -> None:
    lmx = shared
    before = ready(lmx)
    os.kill(before[0], signal.SIGKILL)

    def another() -> psutil.Process | None:
        for one in lmx.processes():
            if "rank 1" in command_of(one) and one.pid not in before:
                return one
        return None

    follower = wait_until(another, "rank 1 of the next worker")
    worker = follower.parent()
    follower.send_signal(signal.SIGSTOP)
    wait_until(lambda: gone(follower.pid) and gone(worker.pid), "the end of both")
    assert follower.pid not in ready(lmx)


@pytest.mark.soak
def test_a_machine_that_stops_keeps_no_memory_of_the_other(two: Machines) -> None:
    assert two.desk.cli("load", "divided").returncode == 0
    before = ready(two.desk)
    stopped = two.desk.processes()
    for process in stopped:
        process.suspend()
    try:
        wait_until(lambda: gone(before[1]), "the end of the rank that hears nothing")
        wait_until(lambda: not lent(two), "its memory")
    finally:
        for process in stopped:
            process.resume()
    assert not set(ready(two.desk)) & set(before)


def left(lmx: Rig) -> dict[str, Any]:
    """Return what a machine has of processes, sockets, and reserved memory that belongs to no
    worker and no rank. (What a worker reserves follows what the one before it was measured at.)"""
    assert lmx.supervisor is not None
    processes = lmx.lasting()
    status = lmx.status()
    own = status["workers"] + status["supervisor"]["lent"]
    sockets = itertools.chain.from_iterable(each.net_connections("tcp") for each in processes)
    return {
        "processes": len(processes),
        "ports": sum(one.status == psutil.CONN_LISTEN for one in sockets),
        "descriptors": psutil.Process(lmx.supervisor.pid).num_fds(),
        "files": sorted(path.name.partition("-")[0] for path in (lmx.home / "run").iterdir()),
        "bytes": status["supervisor"]["reserved_bytes"]
        - sum(each["reserved_bytes"] for each in own),
    }


def as_before(lmx: Rig, before: dict[str, Any]) -> None:
    """Wait until a machine has what it had. Of its start a supervisor may have kept open more."""

    found: dict[str, Any] = {}

    def same() -> bool:
        with contextlib.suppress(psutil.Error):  # One has ended meanwhile.
            found.update(left(lmx))
        fewer = min(found["descriptors"], before["descriptors"]) if found else 0
        return found == before | {"descriptors": fewer}

    try:
        wait_until(same, "what was there before, and nothing else")
    except AssertionError:
        running = [" ".join(command_of(each)) for each in lmx.lasting()]
        raise AssertionError(f"{found} is not {before}: {running}") from None


@pytest.mark.soak
@pytest.mark.skipif(not ROUNDS, reason="make kill-ranks")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["one", "two"])
async def test_rounds(where: str, request: pytest.FixtureRequest) -> None:
    machines: Machines = request.getfixturevalue(where)
    chance = random.Random(SEED)
    lmx = machines.desk
    expected = await first_answer(lmx)
    await pause(lmx, 0)
    await pause(lmx, 1)
    before = [(machine, left(machine)) for machine in (machines.desk, machines.studio)]
    assert [had["bytes"] for _, had in before] == [0, 0]
    each: list[tuple[signal.Signals | str, int]] = list(itertools.product(KINDS, (0, 1)))
    cases = itertools.chain.from_iterable(chance.sample(each, len(each)) for _ in range(ROUNDS))
    async with http() as session:
        asked = []
        if where == "two":
            settings: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
            _, answer = await whole(session, lmx.url, "whole", "say", **settings)
            text = answer["choices"][0]["message"]["content"]
            asked.append((ask("whole", "say", **settings), text))
        others = Others(session, lmx.url, *asked)
        async with others.asking():
            for done, (number, rank) in enumerate(itertools.islice(cases, ROUNDS), 1):
                busy = chance.random() < 0.8
                print(f"round {done}: {where}, rank {rank}, {number}, {'busy' if busy else 'idle'}")
                try:
                    await strike(machines, rank, number, expected, busy=busy)
                except AssertionError:
                    print(*(machine.cli("events").stdout for machine, _ in before), sep="\n")
                    raise
                for machine, had in before:
                    await asyncio.to_thread(as_before, machine, had)
                if where == "two":
                    (rank_there,) = lent(machines)
                    assert rank_there["pid"] == ready(lmx)[1]
    print(f"{others.answers} answers of other models were the same")
    assert lmx.cli("unload", "divided").returncode == 0
    if where == "two":
        alone = {"processes": 2}
        as_before(machines.studio, before[1][1] | alone)
