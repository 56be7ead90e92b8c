"""How the ranks of a model are introduced to mlx: all of them get the same addresses, or the names
of their RDMA devices."""

import json
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import zmq

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages.ranks import (
    FollowerLink,
    FollowerSpec,
    FollowersStarted,
    RemoteFollower,
    WantFollowers,
)
from lmx.protocol.messages.specs import LogSpec, RankHost, RanksSpec, WorkerSpec
from lmx.worker.mlx.model.shard import join_group
from lmx.worker.ranks.follower import Following
from lmx.worker.ranks.leader import Leader, _Follower
from lmx.worker.ranks.link import join
from lmx.worker.ranks.wire import Incoming
from tests.support.models.model_folders import write_model

Devices = tuple[tuple[str, ...], ...]
DEVICES: Devices = (("", "rdma_en5"), ("rdma_en4", ""))
BEAT_S, SILENCE_S = 0.2, 60.0


def spec_of(folder: Path, instance: str, ranks: RanksSpec) -> WorkerSpec:
    return WorkerSpec(
        instance=instance, model_id="m", model_path=str(folder), run_dir=str(folder),
        log=LogSpec("", "info", 0, 0), engine="x:y", engine_options={}, memory_limit_bytes=1,
        max_rows=1, max_queue=1, beat_interval_s=BEAT_S, ranks=ranks,
    )  # fmt: skip


@contextmanager
def two_machines(
    folder: Path,
    devices: Devices = (),
    beat_s: float = BEAT_S,
    silence_s: float = SILENCE_S,
    lost: Callable[[LmxError], None] = lambda _: None,
) -> Iterator[tuple[Leader, Following]]:
    """Rank 0, and a follower that another machine has started, without their engines."""
    followers: list[Following] = []
    threads: list[threading.Thread] = []

    def want(wish: WantFollowers) -> None:
        (meeting,) = wish.meetings
        link = FollowerLink(meeting.endpoint, meeting.server_key, meeting.address, 0)
        keys = zmq.curve_keypair()
        stream, carrier = join(link, keys, BEAT_S, SILENCE_S)
        # Its machine knows nothing of devices until rank 0 names them.
        worker = spec_of(folder, "lent-1", RanksSpec(2, silence_s=SILENCE_S))
        worker = replace(worker, beat_interval_s=beat_s)
        following = Following(stream, FollowerSpec(worker, 1, link))
        listening = (iter(()), Incoming())
        threads.extend((threading.Thread(target=following.listen, args=listening), carrier))
        threads[0].start()
        followers.append(following)
        leader.answered(FollowersStarted((RemoteFollower(keys[0].decode(), os.getpid()),)))

    hosts = (RankHost("studio", "127.0.0.1"),)
    ranks = RanksSpec(2, silence_s=silence_s, hosts=hosts, rdma_devices=devices)
    leader = Leader(spec_of(folder, "w-1", ranks), lost, want)
    leader.start()
    try:
        yield leader, followers[0]
    finally:
        leader.close(1.0)
        for thread in threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("devices", [(), DEVICES])
def test_both_ranks_are_told_where_the_others_are(tmp_path: Path, devices: Devices) -> None:
    found: list[Mapping[str, str]] = []
    with two_machines(write_model(tmp_path), devices) as (leader, following):
        met = threading.Thread(target=lambda: found.append(following.meet()))
        met.start()
        found.append(leader.meet())
        met.join(90)
    ranks = sorted(found, key=lambda each: each["MLX_RANK"])
    assert [each["MLX_RANK"] for each in ranks] == ["0", "1"]
    name = "MLX_IBV_DEVICES" if devices else "MLX_HOSTFILE"
    files = [json.loads(Path(each[name]).read_text()) for each in ranks]
    assert files[0] == files[1]
    if devices:
        assert files[0] == [[None, "rdma_en5"], ["rdma_en4", None]]
        (coordinator,) = {each["MLX_JACCL_COORDINATOR"] for each in ranks}
        assert coordinator.startswith("127.0.0.1:")
    else:
        assert [len(each) for each in files[0]] == [1, 1]
    assert all(("MLX_HOSTFILE" in each) is not bool(devices) for each in ranks)


def test_a_rank_that_says_nothing_more_is_lost_and_named(tmp_path: Path) -> None:
    lost = queue.SimpleQueue[LmxError]()
    with two_machines(write_model(tmp_path), beat_s=900.0, silence_s=1.0, lost=lost.put):
        error = lost.get(timeout=90)
    assert error.code is ErrorCode.WORKER_HUNG
    assert re.match(r"rank 1 .*studio.* said nothing for \d", error.message), error.message


def test_a_lent_rank_says_to_its_supervisor_that_it_leaves(tmp_path: Path) -> None:
    """It sends no beats while it gives memory back, and is not to be taken for one that stopped."""
    (leader, stream), (supervisor, lease) = socket.socketpair(), socket.socketpair()
    with leader, stream, supervisor, lease:
        worker = spec_of(tmp_path, "lent-1", RanksSpec(2, silence_s=SILENCE_S))
        following = Following(stream, FollowerSpec(worker, 1, None), lease)
        leader.close()
        following.listen(iter(()), Incoming())
        supervisor.setblocking(False)
        assert supervisor.recv(64) in (b".", b"")
        assert supervisor.recv(64) == b""


class Met:
    """A rank that has met the others."""

    rank = 1
    spec = RanksSpec(2)

    def __init__(self, folder: Path) -> None:
        self.file = folder / "r-1"
        self.file.write_text("[]")

    def meet(self) -> dict[str, str]:
        return {
            "MLX_RANK": "1",
            "MLX_IBV_DEVICES": str(self.file),
            "MLX_JACCL_COORDINATOR": "10.0.0.1:5000",
        }


def test_mlx_gets_its_backend_and_its_variables_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    group: Any = object()

    def init(*, strict: bool, backend: str) -> Any:
        seen.update(backend=backend, strict=strict, rank=os.environ["MLX_RANK"])
        seen["devices"] = Path(os.environ["MLX_IBV_DEVICES"]).read_text()
        return group

    monkeypatch.setattr(mx.distributed, "is_available", lambda backend: backend == "jaccl")
    monkeypatch.setattr(mx.distributed, "init", init)
    met: Any = Met(tmp_path)
    assert join_group(met) is group
    assert seen == {"backend": "jaccl", "strict": True, "rank": "1", "devices": "[]"}
    assert not met.file.exists()
    assert not any(name.startswith("MLX_JACCL") or name == "MLX_RANK" for name in os.environ)


def test_a_machine_without_rdma_says_so_before_it_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.distributed, "is_available", lambda backend: backend == "ring")
    met: Any = Met(tmp_path)
    with pytest.raises(OperationError, match=r"no jaccl.*set backend to ring"):
        join_group(met)
    assert not met.file.exists()


def test_a_follower_that_was_ordered_nothing_leaves_by_itself(tmp_path: Path) -> None:
    """Rank 0's engine broke, or is stuck. On a Mac a follower gives the memory of its GPU back."""
    code = "import os, sys\nwhile os.read(0, 100):\n    pass\nsys.exit(7)"
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs.fileno())
    leader = Leader(spec_of(tmp_path, "i", RanksSpec(2)), lambda _: None)
    leader._followers.append(_Follower(1, process.pid, ours, time.monotonic(), process))
    leader.close(60.0)
    assert process.returncode == 7
