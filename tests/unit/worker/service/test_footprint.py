"""What a process says of its own memory."""

import mmap
import os
import sys

import pytest

from lmx.protocol.host.memory import mac_footprint
from lmx.worker.service import heartbeat

MIB = 1024**2
STATUS = (
    "Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t  123456 kB\nVmRSS:\t   1000 kB\n"
    "Odd:\t12\nWorse:\tx kB\n"
)


@pytest.mark.parametrize(
    ("name", "size"),
    [("VmHWM", 123_456 * 1024), ("VmRSS", 1_024_000), ("Vm", None), ("Odd", None), ("Worse", None)],
)
def test_a_size_is_read_from_the_status(name: str, size: int | None) -> None:
    assert heartbeat.parse_status(STATUS, name) == size


def test_the_peak_stays_when_memory_is_given_back() -> None:
    before = heartbeat.memory_bytes(0)
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"x" * (64 * MIB))
        with_block = heartbeat.memory_bytes(0)
        assert with_block > before + 60 * MIB
    assert heartbeat.memory_bytes(0) < with_block - 60 * MIB
    assert heartbeat.peak_memory_bytes(0) >= with_block - MIB


@pytest.mark.skipif(sys.platform == "darwin", reason="the footprint has all of it")
def test_what_an_engine_counts_is_not_less() -> None:
    assert heartbeat.memory_bytes(1 << 50) == 1 << 50
    assert heartbeat.peak_memory_bytes(1 << 50) == 1 << 50


@pytest.mark.skipif(sys.platform != "darwin", reason="macOS's own call")
def test_a_mac_shows_its_footprint() -> None:
    found = mac_footprint(os.getpid())
    assert found is not None
    assert MIB < found[0] <= found[1]
