"""What happens to files that were made to do harm: each is refused, in little time and memory, and
the next file is decoded."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lmx.protocol.errors import RequestError
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.router.http.errors import http_status
from lmx.worker.media.decoder import MediaDecoder
from tests.support.faults.hostile_media import HARMLESS, REFUSED, TOO_LARGE, Hostile, hostile_media
from tests.support.faults.hostile_media import picture as honest_picture
from tests.support.rigs.decoding import EVERYTHING, PARAM, item, picture

pytestmark = pytest.mark.long

LIMITS = DecodeLimits(
    cpu_s=1.0, packets=50_000, memory_bytes=256 << 20, sound_s=600.0, picture_pixels=10_000_000
)
AT_REST_BYTES = 160 << 20
GENEROUS_S = 120.0
ALL = hostile_media()


@pytest.fixture(scope="module")
def decoder() -> Iterator[MediaDecoder]:
    made = MediaDecoder(LIMITS)
    yield made
    made.close()


def test_there_are_enough_of_them() -> None:
    assert len({row.name for row in ALL}) == len(ALL)
    assert sum(HARMLESS not in row.ends for row in ALL) >= 80


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name.replace(" ", "-"))
def test_it_does_no_harm(decoder: MediaDecoder, row: Hostile) -> None:
    file = row.make()
    decoder.start()
    _forget_peak(decoder)
    began_s = time.monotonic()
    try:
        decoder.decode([item(row.kind, row.form, file)], [file], EVERYTHING)
        status = HARMLESS
    except RequestError as error:
        status = http_status(error.code)
        assert error.param == PARAM and PARAM in error.message
        assert "/" not in error.message.replace("Input/output", ""), "a path"
    assert status in row.ends
    assert time.monotonic() - began_s < LIMITS.cpu_s + GENEROUS_S
    assert _peak_bytes(decoder) < LIMITS.memory_bytes + AT_REST_BYTES + 3 * len(file)


def test_others_are_decoded_afterwards(decoder: MediaDecoder) -> None:
    assert picture(decoder, "png", honest_picture("png")).pixels.shape == (64, 64, 3)


def test_every_limit_was_met_by_one_of_them() -> None:
    assert {REFUSED, TOO_LARGE, HARMLESS} <= {end for row in ALL for end in row.ends}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_can_be_opened(decoder: MediaDecoder) -> None:
    picture(decoder, "png", honest_picture("png"))
    process = psutil.Process(decoder.pid)
    assert process.rlimit(psutil.RLIMIT_NOFILE) == (3, 3)
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    assert process.num_fds() == 3 and process.num_threads() == 1


def _forget_peak(decoder: MediaDecoder) -> None:
    if sys.platform == "linux":
        Path(f"/proc/{decoder.pid}/clear_refs").write_text("5")


def _peak_bytes(decoder: MediaDecoder) -> int:
    """Return the most memory that the process had; 0 if it has ended, or nobody says it."""
    if sys.platform != "linux" or decoder.pid is None:
        return 0
    lines = Path(f"/proc/{decoder.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
