"""What belongs to a home is found by its environment."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from lmx.supervisor.cli.bench.processes import ServerProcesses
from lmx.supervisor.processes import descendants
from lmx.supervisor.processes.descendants import end_marked, mark, marked
from lmx.supervisor.state.home import Home


@contextmanager
def _child(home: Home, held: socket.socket | None = None) -> Iterator[subprocess.Popen[bytes]]:
    script = "print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script], env=mark(home, "x"), stdout=subprocess.PIPE,
        pass_fds=[] if held is None else [held.fileno()],
    ) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


def test_a_home_has_several_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, link = Home(tmp_path / "real"), Home(tmp_path / "link")
    for started, asked in ((link, real), (real, link)):
        with _child(started) as child:
            assert [process.pid for process in marked(asked)] == [child.pid]
            assert marked(Home(tmp_path)) == []
            assert end_marked(asked) == [child.pid]


def test_what_cannot_be_killed_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "kill", lambda _process: None)
    monkeypatch.setattr(descendants, "_GONE_S", 0.0)
    home = Home(tmp_path)
    with _child(home):
        assert end_marked(home) == []


def test_the_processes_of_a_server_are_all_of_its_home(tmp_path: Path) -> None:
    """Workers that outlived their supervisor descend from nothing that listens."""
    home, other = Home(tmp_path / "one"), Home(tmp_path / "other")
    listening = socket.create_server(("127.0.0.1", 0))
    with _child(home, listening) as router, _child(home) as worker, _child(other) as stranger:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.close()
        found = ServerProcesses.at(url)
        assert found is not None
        pids = {process.pid for process in found._all()}
    assert {router.pid, worker.pid} <= pids
    assert stranger.pid not in pids
