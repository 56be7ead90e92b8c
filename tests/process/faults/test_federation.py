"""Three lmx with homes of their own, which are peers, under blows to one of them: no request that
had no token yet is lost."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.rigs.federated_homes import MODEL, federated_homes, know_all
from tests.support.rigs.rig import Rig, http, wait_until

pytestmark = pytest.mark.long

MACHINES = ("desk", "studio", "attic")
ROUNDS = int(os.environ.get("LMX_TEST_ROUNDS", "1"))
CLIENTS = 10


class Clients:
    """Clients of one machine that ask again as soon as they are answered. ``lost`` has what became
    of requests that got no token and no answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.whole: Counter[str] = Counter()
        """Answers that were whole, by the machine that the headers name; empty where those were
        sent before it was known."""
        self.broken: Counter[str] = Counter()
        """Streams that had begun and ended with an error, by its code."""
        self.lost: list[str] = []
        self._url = f"{url}/chat/completions"
        self._session = session
        self._ends = asyncio.Event()

    async def run(self, number: int) -> None:
        """Ask until :meth:`end`."""
        chance = random.Random(number)
        while not self._ends.is_set():
            directive = {"tokens": 12, "step_s": 0.02, "prefill_s": chance.choice([0.05, 0.4])}
            body: dict[str, Any] = {
                "model": MODEL,
                "stream": chance.random() < 0.6,
                "messages": [{"role": "user", "content": str(directive).replace("'", '"')}],
            }
            async with self._session.post(self._url, json=body) as response:
                text = await response.text()
                machine = response.headers.get("X-Lmx-Machine", "")
            words = text.count("word")
            is_whole = words >= 12 and '"error"' not in text
            if response.status == 200 and is_whole:
                self.whole[machine] += 1
            elif response.status == 200 and "word" in text and '"code":"' in text:
                self.broken[text.rpartition('"code":"')[2].partition('"')[0]] += 1
            else:
                self.lost.append(f"{response.status} {machine} {text[-300:]}")

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask for the duration of the block; what was asked is answered."""
        tasks = [asyncio.create_task(self.run(number)) for number in range(CLIENTS)]
        try:
            yield
        finally:
            self._ends.set()
            await asyncio.gather(*tasks)

    async def answered(self, more: int) -> None:
        """Wait until so many more requests were answered."""
        wanted, end_s = self.whole.total() + more, time.monotonic() + 90
        while self.whole.total() < wanted:
            assert time.monotonic() < end_s, (self.whole, self.lost)
            await asyncio.sleep(0.05)


def router_of(lmx: Rig) -> list[psutil.Process]:
    return lmx.running("lmx.router")


def supervisor_of(lmx: Rig) -> list[psutil.Process]:
    assert lmx.supervisor is not None
    return [psutil.Process(lmx.supervisor.pid)]


def all_of(lmx: Rig) -> list[psutil.Process]:
    """Every process, the router first: what it would say of a lost worker is not asked here."""
    first = router_of(lmx)
    return [*first, *(one for one in lmx.processes() if one not in first)]


def send(processes: list[psutil.Process], number: int) -> None:
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)


BLOWS: dict[str, tuple[Callable[[Rig], list[psutil.Process]], int]] = {
    "kill the machine": (all_of, signal.SIGKILL),
    "stop the machine": (all_of, signal.SIGSTOP),
    "kill the router": (router_of, signal.SIGKILL),
    "stop the router": (router_of, signal.SIGSTOP),
    "kill the supervisor": (supervisor_of, signal.SIGKILL),
    "stop the supervisor": (supervisor_of, signal.SIGSTOP),
}


async def blow(lmx: Rig, name: str, clients: Clients) -> None:
    """Hit a machine, let the others answer, and bring it back."""
    whom, number = BLOWS[name]
    hit = whom(lmx)
    send(hit, number)
    await clients.answered(20)
    if number == signal.SIGSTOP:
        # A router that was stopped for long is replaced by its supervisor.
        send(hit, signal.SIGCONT)
    elif whom is not router_of:
        assert lmx.supervisor is not None
        await asyncio.to_thread(lmx.supervisor.wait, 60)
        await asyncio.to_thread(lmx.up)


def command_a_peer(desk: Rig, studio: Rig) -> None:
    """Reach the peer by the machine's name: whoever has a key for it kills its model."""
    before = studio.wait_state(MODEL, "ready")
    wait_until(
        lambda: "answers" in desk.cli("status", "--all").stdout, "the machines know each other"
    )
    printed = desk.cli("status", "--all").stdout
    assert f"{MODEL}" in printed.partition("MACHINE")[2]
    assert desk.cli("status", "--all", "--json").stdout.count('"name": "studio"') == 1
    # A peer that stands still for a second does not answer then.
    wait_until(
        lambda: "GiB of" in desk.cli("top", "--all").stdout.partition("MACHINE")[2], "their memory"
    )
    assert "MACHINE" not in desk.cli("top").stdout
    refused = desk.cli("kill", f"{MODEL}@studio")
    assert "needs the scope admin" in refused.stderr, refused
    assert studio.worker(MODEL)["pid"] == before["pid"]
    key = (studio.home / "admin.key").read_text().strip()
    done = desk.cli("--key", key, "kill", f"{MODEL}@studio")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: studio.worker(MODEL)["pid"] != before["pid"], "another worker")
    assert desk.worker(MODEL)["restarts"] == 0
    unknown = desk.cli("kill", f"{MODEL}@nowhere")
    assert unknown.returncode == 1
    # The whole machine, which stays drained when its supervisor is replaced.
    assert "needs the scope admin" in desk.cli("drain", "--machine", "studio").stderr
    assert "no peer is named" in desk.cli("drain", "--machine", "nowhere").stderr
    done = desk.cli("--key", key, "drain", "--machine", "studio")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is drained" in done.stdout
    wait_until(lambda: "drained" in desk.cli("status", "--all").stdout, "the peer is drained")
    studio.run("restart", "--supervisor")
    wait_until(lambda: "is drained" in studio.cli("status").stdout, "it is still drained")
    assert "again" in studio.cli("undrain", "--machine").stdout


async def rounds(names: list[str]) -> Counter[str]:
    with federated_homes(MACHINES) as rigs:
        desk, studio = rigs["desk"], rigs["studio"]
        async with http() as session:
            for one in rigs.values():
                await asyncio.to_thread(one.wait_state, MODEL, "ready")
                await know_all(session, one, 2)
            await asyncio.to_thread(command_a_peer, desk, studio)
            await asyncio.to_thread(studio.wait_state, MODEL, "ready")
            clients = Clients(session, desk.url)
            async with clients.asking():
                while not set(MACHINES) <= set(clients.whole):
                    await clients.answered(1)
                for name in names:
                    await blow(studio, name, clients)
                    assert not clients.lost, (name, clients.lost)
                    await know_all(session, desk, 2)
                    await clients.answered(10)
            assert not clients.lost, clients.lost
        print(f"\n{len(names)} blows: {clients.whole} whole, {clients.broken} broken")
        assert set(clients.broken) <= {"peer_lost"}, clients.broken
        for one in rigs.values():
            await asyncio.to_thread(one.wait_state, MODEL, "ready")
        return clients.whole


async def test_a_machine_that_is_killed_or_stopped_loses_no_request_without_a_token() -> None:
    await rounds(["kill the machine", "stop the machine"])


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_blows_to_every_process_of_a_peer_lose_no_request_without_a_token() -> None:
    chance = random.Random(ROUNDS)
    names = [name for _ in range(ROUNDS) for name in chance.sample(list(BLOWS), len(BLOWS))]
    await rounds(names)
