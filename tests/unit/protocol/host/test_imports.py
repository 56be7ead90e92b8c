"""A process that has just started: what its imports do without, and what is there afterwards."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, sys, typing
from lmx.protocol.host.imports import quick_imports
with quick_imports():
    assert not gc.isenabled()
    codes = [typing.ForwardRef("dict[str, int]").__forward_code__ for _ in range(2)]
    assert codes[0] is codes[1] or sys.version_info >= (3, 14)
    from lmx.protocol.host.logs import configure_logs
assert "compile" not in vars(typing)
assert gc.isenabled() and gc.get_freeze_count() > 0
print("rich" in sys.modules)
configure_logs("worker")
import structlog
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("it.failed")
import rich.console
"""


def test_structlog_is_imported_without_rich_and_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert '"event": "it.failed"' in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_command_imports_no_rich_for_structlog(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lmx.supervisor", "status"],
        capture_output=True, text=True, check=False, env=os.environ | {"LMX_HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, " structlog\n" in done.stderr) == (3, True), done.stderr[-500:]
    assert " rich.traceback\n" not in done.stderr
