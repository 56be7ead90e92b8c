"""A supervisor under model folders, state files and control frames of every kind of nonsense: its
pid stays the same, it answers, and it ends when it is told to.

``make fuzz`` runs 10,000 cases; ``LMX_FUZZ_SEED`` repeats a run.
"""

import os
import random
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zmq
from structlog.testing import capture_logs

from lmx.protocol.errors import OperationError
from lmx.protocol.messages import inventory
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.download_records import DownloadFile
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.state.files import Holds, Pins, read_admin_key
from lmx.supervisor.state.process_records import Records
from tests.support.faults.fuzz_cases import Cases
from tests.support.rigs.rig import Rig, rig, scripted

pytestmark = pytest.mark.long

STATE = ("pins.json", "models.json", "measured.json", "downloads.json", "holds.json")


class Fuzz:
    """One lmx, and what was done to it."""

    def __init__(self, lmx: Rig, seed: int) -> None:
        self.lmx = lmx
        self.cases = Cases(seed)
        self.pid = lmx.status()["supervisor"]["pid"]
        self.counts: Counter[str] = Counter()

    def check(self) -> None:
        """The same process answers, and its model is well."""
        status = self.lmx.status()
        assert status["supervisor"]["pid"] == self.pid
        assert "good" in {line["model"] for line in status["workers"]}

    def folders(self, count: int) -> None:
        """Have models added that nobody can read, and some that can be."""
        for number in range(count):
            folder = self.cases.folder(self.lmx.root / f"fuzz-{number % 5}")
            try:
                self.lmx.ask(inventory.AddModel("fuzz", str(folder)))
            except OperationError as error:
                assert "supervisor failed" not in error.message, error.message
                self.counts["folders refused"] += 1
                continue
            self.counts["folders taken"] += 1
            if self.cases.random.random() < 0.1:
                self.check()
            self.lmx.ask(inventory.RemoveModel("fuzz"))
        self.check()

    def frames(self, count: int) -> None:
        """Send what is no message, or not one that makes sense, and read what is answered."""
        run = RunDirectory(self.lmx.home / "run")
        context = zmq.Context()
        try:
            peer = context.socket(zmq.DEALER)
            peer.setsockopt(zmq.LINGER, 0)
            peer.connect(run.control)
            instance: str | None = None
            for number in range(count):
                if number % 100 == 0:
                    instance = self.lmx.worker("good")["instance"]
                if number % 10 == 0:
                    path = run.control_socket if number % 20 else run.events_socket
                    self._garbage(path)
                    continue
                peer.send_multipart(
                    [self.cases.frame(instance)] * self.cases.random.choice((1, 1, 1, 3))
                )
                while peer.poll(0):
                    peer.recv_multipart()
                    self.counts["answers"] += 1
        finally:
            context.destroy(linger=0)
        self.counts["frames"] += count
        self.check()

    def _garbage(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(30)
            try:
                raw.connect(str(path))
                raw.sendall(self.cases.garbage())
            except OSError:
                self.counts["connections ended"] += 1

    def state(self, count: int) -> None:
        """Read state files in this process, as a supervisor does when it starts."""
        home = self.lmx.root / "state"
        readers: list[Any] = [
            (home / "pins.json", lambda path: Pins(path).load()),
            (home / "models.json", lambda path: AddedFile(path).load()),
            (home / "measured.json", Measured.load),
            (home / "downloads.json", lambda path: DownloadFile(path).load()),
            (home / "holds.json", lambda path: Holds(path).load()),
            (home / "router.json", lambda path: Records(path.parent).routers()),
            (home / "workers" / "x.json", lambda path: Records(path.parent.parent).workers()),
            (home / "admin.key", read_admin_key),
        ]
        for _ in range(count):
            path, read = self.cases.random.choice(readers)
            self.cases.state(path)
            read(path)
        self.counts["state files"] += count

    def restarts(self, count: int) -> None:
        """Have another program take over with state files that it can't read."""
        for _ in range(count):
            for name in STATE:
                self.cases.state(self.lmx.home / "state" / name)
            for _ in range(5):
                found = self.lmx.cli("restart", "--supervisor", timeout_s=60)
                if "did not read the configuration within" not in found.stderr:
                    break  # a machine that is busy with something else
            assert found.returncode == 0, found.stderr
            self.check()
        self.counts["restarts over state files"] += count * len(STATE)


def fuzz(folders: int, frames: int, state: int, restarts: int) -> None:
    seed = int(os.environ.get("LMX_FUZZ_SEED") or random.SystemRandom().randrange(2**32))
    print(f"LMX_FUZZ_SEED={seed}")
    began_s = time.monotonic()
    # What this process says itself of the files that it reads is of no interest.
    with capture_logs(), rig({"models": [scripted("good")]}) as lmx:
        lmx.wait_state("good", "ready")
        run = Fuzz(lmx, seed)
        run.folders(folders)
        run.frames(frames)
        run.state(state)
        run.restarts(restarts)
        run.frames(frames // 10)
        lmx.cli("load", "good")
        lmx.wait_state("good", "ready")
        assert lmx.cli("status").returncode == 0
        print(f"pid {run.pid} all the time; {dict(run.counts)}; {time.monotonic() - began_s:.0f} s")
        assert lmx.stop(signal.SIGTERM) == 0


def test_some_hundred_cases() -> None:
    fuzz(folders=100, frames=300, state=100, restarts=0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_cases() -> None:
    fuzz(folders=4000, frames=4000, state=1500, restarts=20)
