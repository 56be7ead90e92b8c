"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

FILL_AND_TRIM = """
import psutil
from lmx.protocol.host.memory import trim_heap
rss = lambda: psutil.Process().memory_info().rss
before = rss()
# Small blocks with survivors in between: glibc can't give such a heap back by itself.
blocks = [bytes(4000) for _ in range(50_000)]
survivors = blocks[::500]
del blocks
freed = rss()
trim_heap()
print(freed - before, rss() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's matter")
def test_a_trimmed_heap_is_smaller() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL_AND_TRIM], capture_output=True, text=True, check=True
    )
    kept_bytes, trimmed_bytes = map(int, done.stdout.split())
    assert kept_bytes > 100_000_000
    assert trimmed_bytes < kept_bytes / 4
