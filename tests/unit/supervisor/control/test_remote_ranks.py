"""Ranks that other machines start for a worker of this one, and what ends them."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.messages.peers import Peer, PeerList
from lmx.protocol.messages.ranks import (
    FollowersStarted,
    Meeting,
    RemoteFollower,
    WantFollowers,
)
from lmx.protocol.models.ranks import Parallel
from lmx.supervisor.control import remote_ranks
from lmx.supervisor.control.remote_ranks import RemoteRanks
from tests.support.fakes.fake_peers import until

WISH = WantFollowers("w1", "d" * 64, {}, (Meeting("tcp://127.0.0.1:1", "k" * 40, "127.0.0.1"),))


class Desk:
    """A machine with one worker, whose other rank is to run on the machine ``studio``. ``said`` is
    what studio was asked, in the order in which it had answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workers = {"w1"}
        self.said: list[str] = []
        self.sent: list[Any] = []
        self.asked = threading.Event()
        self.answers = threading.Event()
        monkeypatch.setattr(remote_ranks, "_call", self._call)
        model = SimpleNamespace(
            id="big", hosts=("studio",), ranks=2, parallel=Parallel.TENSOR, context_length=None,
            max_decode_stall_s=1.0,
        )  # fmt: skip
        plan = SimpleNamespace(
            reserve_bytes=3, worker_bytes=2, prefix_cache_bytes=1, context_tokens=4096, kv_bits=None
        )
        slot = SimpleNamespace(model=model, plan=plan, worker=SimpleNamespace(instance="w1"))
        timing = SimpleNamespace(beat_interval_s=0.3, beat_timeout_s=2.0)
        core: Any = SimpleNamespace(has_worker=self.workers.__contains__, slots={"big": slot})
        settings: Any = SimpleNamespace(current=SimpleNamespace(timing=timing))
        peers = PeerList.of((Peer("studio", "http://127.0.0.1:1", key="k"),))
        self.ranks = RemoteRanks(
            core, settings, lambda: peers, lambda _, message: self.sent.append(message)
        )

    def _call(self, peer: Peer, method: str, path: str, body: Any, limit_s: float) -> Any:
        if method == "POST":
            self.asked.set()
            assert self.answers.wait(90)
        self.said.append(method)
        return {"public_key": "p" * 40, "pid": 7}


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


async def test_ranks_are_started_and_end_with_their_worker(desk: Desk) -> None:
    desk.answers.set()
    desk.ranks.want(WISH)
    desk.ranks.want(WISH)
    await until(lambda: desk.sent)
    assert desk.sent == [FollowersStarted((RemoteFollower("p" * 40, 7),))]
    desk.ranks.worker_exited("w1")
    await until(lambda: len(desk.said) == 2)
    assert desk.said == ["POST", "DELETE"]


async def test_a_start_that_comes_after_the_end_is_ended_too(desk: Desk) -> None:
    """The question that ends the ranks may be there before the one that starts them."""
    desk.ranks.want(WISH)
    await until(desk.asked.is_set)
    desk.workers.clear()
    desk.ranks.worker_exited("w1")
    await until(lambda: desk.said == ["DELETE"])
    desk.answers.set()
    await until(lambda: len(desk.said) == 3)
    assert desk.said == ["DELETE", "POST", "DELETE"]
