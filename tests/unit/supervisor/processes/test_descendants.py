"""What belongs to a home is found by its environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmx.supervisor.processes.descendants import end_marked, mark, marked
from lmx.supervisor.state.home import Home


@contextmanager
def _child(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    script = "print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script], env=mark(home, "x"), stdout=subprocess.PIPE
    ) as child:
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
