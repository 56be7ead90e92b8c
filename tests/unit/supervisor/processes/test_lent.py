"""Ranks of other machines' models: what is refused, what is reserved, and what ends them."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import LmxError
from lmx.protocol.host import same_model
from lmx.protocol.messages.ranks import (
    EndRanks,
    FollowerSpec,
    Meeting,
    RankStarted,
    StartRank,
)
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.states import MemoryPressure
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.processes import lent
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_peers import until
from tests.support.rigs.core_rig import CoreRig

KEY = b"k" * 40


class Machine:
    """A machine with one model in a folder. It is its own launcher: nothing is started."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = root / "model"
        self.folder.mkdir()
        (self.folder / "config.json").write_text("{}")
        (self.folder / "model.safetensors").write_bytes(bytes(range(256)) * 10_000)
        settings: dict[str, dict[str, Any]] = {
            "fake": {"engine": "a:b"},
            "tiny": {"engine": MLX_ENGINE, "preload": False},
        }
        self.rig = CoreRig({"tiny": 100, "fake": 1}, budget=1000, models=settings)
        model = self.rig.core.slots["tiny"].model
        found = Inspection(question_of(model), path=str(self.folder))
        self.rig.core.inspected("tiny", found, 0.0)
        self.killed: list[int] = []
        self.keys = {"peer-desk"}
        self.spec: FollowerSpec | None = None
        self.lease = -1
        self.exited: Callable[[int, int], None]
        monkeypatch.setattr(lent, "signal_group", lambda pid, _number: self._kill(pid))
        home = Home(root / "home")
        any_self: Any = self
        self.ranks = lent.LentRanks(
            self.rig.core,
            self.rig.settings,
            home,
            any_self,
            any_self,
            self.rig.actions,
            lambda name: name in self.keys,
        )
        self.asked = StartRank(
            "peer-desk", "g1", "tiny", 1, 2, Parallel.TENSOR,
            Meeting("tcp://127.0.0.1:4000", "k" * 40, "127.0.0.1"), same_model.digest(self.folder),
            same_model.versions(), 300, 200, 50, 4096, None, 0.3, 0.2, 2.0,
        )  # fmt: skip

    def start(self, module: str, *arguments: Any) -> int:
        """Be the launcher."""
        assert module == "lmx.worker.ranks.lent"
        _, self.spec, _, self.exited, _ = arguments
        assert self.spec is not None and self.spec.link is not None
        self.lease = os.dup(self.spec.link.lease_fd)
        return 4242

    def ends_at_s(self) -> float:
        """Return until when the only rank is kept without another byte."""
        (one,) = self.ranks._lent.values()
        assert one.timer is not None
        return one.timer.when()

    def end(self, instance: str, what: str) -> None:
        """Be the descendants."""

    def _kill(self, pid: int) -> None:
        self.killed.append(pid)
        os.close(self.lease)
        self.lease = -1
        self.exited(pid, -signal.SIGKILL)

    async def lend(self, **changed: Any) -> RankStarted:
        """Ask for a rank, whose process says its key."""
        asking = asyncio.ensure_future(
            self.ranks.handlers[StartRank](replace(self.asked, **changed), 0.0)
        )
        await until(lambda: self.lease >= 0 or asking.done())
        if self.lease >= 0:
            os.write(self.lease, KEY)
        found: RankStarted = await asyncio.wait_for(asking, 90)
        return found


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    if made.lease >= 0:
        os.close(made.lease)


async def test_a_rank_has_memory_until_nothing_is_heard_of_it(machine: Machine) -> None:
    assert await machine.lend(silence_s=60.0) == RankStarted(KEY.decode(), 4242)
    assert machine.rig.core.ledger.free_bytes == 700
    (rank,) = machine.ranks.status
    assert (rank.model, rank.owner, rank.reserved_bytes) == ("tiny", "peer-desk", 300)
    spec = machine.spec
    assert spec is not None
    assert (spec.worker.model_path, spec.worker.engine) == (str(machine.folder), MLX_ENGINE)
    with pytest.raises(LmxError, match="runs already"):
        await machine.lend()
    # Each byte gives it as much time again.
    for _ in range(3):
        before_s = machine.ends_at_s()
        os.write(machine.lease, b".")
        await until(lambda: machine.ends_at_s() > before_s)  # noqa: B023
    assert not machine.killed
    machine.exited(4242, 0)
    os.close(machine.lease)
    machine.lease = -1
    await machine.lend(group="g2", silence_s=0.05)
    await until(lambda: machine.killed)
    assert machine.ranks.status == ()
    assert machine.rig.core.ledger.free_bytes == 1000
    await machine.lend(group="g3", silence_s=60.0)


async def test_none_is_started_while_the_machine_is_short_of_memory(machine: Machine) -> None:
    machine.rig.core.set_pressure(MemoryPressure.SOFT, 0.0)
    with pytest.raises(LmxError, match="short of memory"):
        await machine.lend()
    machine.rig.core.set_pressure(MemoryPressure.NONE, 1.0)
    await machine.lend(silence_s=60.0)


async def test_a_rank_is_not_started_after_its_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, read, identity = threading.Event(), threading.Event(), lent._identity

    def slow(path: Path) -> Any:
        reading.set()
        assert read.wait(90)
        return identity(path)

    monkeypatch.setattr(lent, "_identity", slow)
    asking = asyncio.ensure_future(machine.ranks.handlers[StartRank](machine.asked, 0.0))
    await until(reading.is_set)
    machine.ranks.handlers[EndRanks](EndRanks("peer-desk", "g1"), 0.0)
    read.set()
    with pytest.raises(LmxError, match="rank 0 has ended"):
        await asking
    assert (machine.spec, machine.ranks.status) == (None, ())
    await machine.lend(group="g2", silence_s=60.0)


async def test_only_who_has_started_a_rank_ends_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent, "_LEAVE_S", 0.1)
    await machine.lend(silence_s=60.0)
    end = machine.ranks.handlers[EndRanks]
    end(EndRanks("peer-laptop", "g1"), 0.0)
    end(EndRanks("peer-desk", "g2"), 0.0)
    os.set_blocking(machine.lease, False)
    with pytest.raises(BlockingIOError):
        os.read(machine.lease, 1)
    end(EndRanks("peer-desk", "g1"), 0.0)
    assert os.read(machine.lease, 1) == b"", "the process is told"
    # One that does not react is ended.
    await until(lambda: machine.killed)
    assert machine.rig.core.ledger.free_bytes == 1000


async def test_a_revoked_key_ends_what_it_has_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent, "_LEAVE_S", 0.1)
    await machine.lend(silence_s=60.0)
    machine.keys.clear()
    os.write(machine.lease, b".")
    await until(lambda: machine.killed)
    assert machine.rig.core.ledger.free_bytes == 1000


async def test_a_process_that_ends_before_its_key_is_a_refusal(machine: Machine) -> None:
    asking = asyncio.ensure_future(machine.ranks.handlers[StartRank](machine.asked, 0.0))
    await until(lambda: machine.lease >= 0)
    machine.exited(4242, 1)
    with pytest.raises(LmxError, match="could not begin"):
        await asking
    assert machine.rig.core.ledger.free_bytes == 1000


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_id": "other"}, "no model 'other'"),
        ({"model_id": "fake"}, "an engine of its own"),
        ({"versions": {"lmx": "9.9"}}, "and 9.9 there"),
        ({"digest": "0" * 64}, "files of tiny are others"),
        ({"reserve_bytes": 5000}, "only 1000 B of 1000 B are free"),
        ({"rank": 2}, "no rank 2 of 2"),
        ({"meeting": Meeting("tcp://127.0.0.1:1", "k" * 40, "192.0.2.1")}, "no address of this"),
        ({"meeting": Meeting("ipc:///tmp/x", "k" * 40, "127.0.0.1")}, "IPv4"),
        ({"meeting": Meeting("tcp://studio:1", "k" * 40, "127.0.0.1")}, "IPv4"),
    ],
)
async def test_what_is_refused_takes_nothing(
    machine: Machine, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(LmxError, match=said):
        await machine.lend(**changed)
    assert machine.rig.core.ledger.free_bytes == 1000
    assert (machine.spec, machine.ranks.status) == (None, ())


@pytest.mark.parametrize("error", [OSError(12, "no memory"), TypeError("x"), OverflowError("y")])
async def test_a_process_that_cannot_be_started_takes_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Also where its spec can't be encoded."""

    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(machine, "start", fail)
    with pytest.raises(LmxError, match=r"can't be started \((no memory|x|y)\)"):
        await machine.lend()
    assert machine.rig.core.ledger.free_bytes == 1000
    assert machine.ranks.status == ()


async def test_a_drained_machine_starts_none(machine: Machine) -> None:
    machine.rig.core.drain(True, 0.0)
    with pytest.raises(LmxError, match="drained"):
        await machine.lend()


async def test_none_is_started_from_files_that_are_being_deleted(machine: Machine) -> None:
    machine.rig.core.operator.take("tiny", events.FilesLeaving(True), 0.0)
    with pytest.raises(LmxError, match="are being deleted here"):
        await machine.lend()


def test_the_hash_of_a_model_notices_a_few_other_weights(machine: Machine) -> None:
    weights = machine.folder / "model.safetensors"
    before, content = same_model.digest(machine.folder), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    after = same_model.digest(machine.folder)
    assert after != before
    (machine.folder / "config.json").write_text('{"a": 1}')
    assert same_model.digest(machine.folder) != after


@pytest.mark.parametrize("ends", [True, False])
async def test_when_lmx_ends_a_rank_has_time_to_end_by_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(lent, "_CLOSE_S", 90.0 if ends else 0.1)
    monkeypatch.setattr(lent, "_LEAVE_S", 300.0)
    await machine.lend()
    lease = os.dup(machine.lease)
    closing = asyncio.ensure_future(machine.ranks.close())
    assert await asyncio.to_thread(os.read, lease, 1) == b""
    os.close(lease)
    if ends:
        assert not closing.done()
        machine.exited(4242, 0)
    await asyncio.wait_for(closing, 90)
    assert machine.killed == ([] if ends else [4242])
    assert not machine.ranks.status
