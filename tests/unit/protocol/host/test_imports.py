"""A process that has just started: what its imports do without, and what is there afterwards."""

import subprocess
import sys

PROGRAM = """
import gc, sys
from lmx.protocol.host.imports import quick_imports
with quick_imports():
    assert not gc.isenabled()
    from lmx.protocol.host.logs import configure_logs
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
