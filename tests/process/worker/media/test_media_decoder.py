"""The process that decodes media: its limits, and its end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.host.processor_wait import ProcessorWait
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.states import MediaKind
from lmx.worker.isolation.child import Exchange
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.media.values import Picture, Sound
from tests.support.fakes.media_files import sine, wav_file
from tests.support.fakes.media_pieces import jpeg_of_scans, png
from tests.support.faults.hostile_media import picture as honest_picture
from tests.support.faults.killed_children import kill_at_work
from tests.support.rigs.decoding import EVERYTHING, PARAM, RATE_HZ, item, picture
from tests.support.rigs.rig import wait_until

pytestmark = pytest.mark.long

DEADLINE_S = 90.0
ENDLESS = jpeg_of_scans(3000, 4000)
"""It takes about 15 s of a processor."""
PICTURE = honest_picture("png")


def _wait_until_busy(process: psutil.Process) -> None:
    used_s = process.cpu_times().user
    wait_until(lambda: process.cpu_times().user > used_s + 0.2, "decoding")


@pytest.fixture
def decoder() -> Iterator[MediaDecoder]:
    made = MediaDecoder()
    yield made
    made.close()


def test_there_is_no_process_before_the_first_item(decoder: MediaDecoder) -> None:
    assert decoder.pid is None
    assert decoder.decode([], [], EVERYTHING) == ()
    assert decoder.pid is None
    picture(decoder, "png", PICTURE)
    first = decoder.pid
    assert first is not None
    picture(decoder, "png", PICTURE)
    assert decoder.pid == first


def test_items_come_back_in_their_order(decoder: MediaDecoder) -> None:
    tone = wav_file(sine(440, 0.5, RATE_HZ), RATE_HZ)
    items = [
        item(MediaKind.AUDIO, "wav", tone),
        item(MediaKind.IMAGE, "png", PICTURE),
        item(MediaKind.AUDIO, "wav", tone),
    ]
    # The bytes come as parts of a message.
    blobs = [memoryview(tone), memoryview(bytearray(PICTURE)), tone]
    found = decoder.decode(items, blobs, EVERYTHING)
    assert [type(value) for value in found] == [Sound, Picture, Sound]
    assert found[0].digest == found[2].digest


def test_what_takes_too_long_is_ended_and_the_next_is_decoded() -> None:
    with closing(MediaDecoder()) as impatient:
        picture(impatient, "png", PICTURE)
        impatient._limits = DecodeLimits(deadline_s=2.0)
        with pytest.raises(RequestError, match=r"within 2 s") as caught:
            picture(impatient, "jpeg", ENDLESS)
        assert caught.value.code is ErrorCode.MEDIA_TIMEOUT and caught.value.param == PARAM
        assert impatient.pid is None
        impatient._limits = DecodeLimits()
        assert picture(impatient, "png", PICTURE).pixels.shape == (64, 64, 3)


def test_an_alarm_that_comes_first_says_that_it_took_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process ends itself where the worker has no turn in time."""
    held_up = MediaDecoder()
    alarm_s = 1.0 - 2 * DecodeLimits().deadline_s
    monkeypatch.setattr("lmx.worker.media.decoder._ALARM_GRACE_S", alarm_s)
    try:
        with pytest.raises(RequestError) as caught:
            picture(held_up, "jpeg", ENDLESS)
        assert caught.value.code is ErrorCode.MEDIA_TIMEOUT and caught.value.param == PARAM
    finally:
        held_up.close()


def test_what_takes_too_much_of_the_processor_is_ended() -> None:
    """Also where there is time enough: it would be the other requests'."""
    with closing(MediaDecoder(DecodeLimits(cpu_s=1.0))) as strict:
        with pytest.raises(RequestError, match=r"1 s of the processor") as caught:
            picture(strict, "jpeg", ENDLESS)
        assert caught.value.code is ErrorCode.INVALID_MEDIA
        # Every item has that much, however many there were before.
        for _ in range(3):
            picture(strict, "png", png(2000, 2000))


def test_what_takes_too_much_memory_is_ended() -> None:
    with closing(MediaDecoder(DecodeLimits(memory_bytes=48 << 20))) as small:
        picture(small, "png", PICTURE)
        with pytest.raises(RequestError, match="48 MiB of memory") as caught:
            picture(small, "png", png(4000, 4000))
        assert caught.value.code is ErrorCode.MEDIA_TOO_LARGE
        picture(small, "png", PICTURE)


def test_the_worker_looks_after_the_memory_where_the_system_does_not() -> None:
    """On a Mac no limit holds: then the growth is seen from here."""
    with closing(MediaDecoder()) as small:
        picture(small, "png", PICTURE)
        # The process keeps the limit that it was started with.
        small._max_memory_bytes = 8 << 20
        with pytest.raises(RequestError, match="of memory"):
            picture(small, "jpeg", ENDLESS)


def test_a_request_is_decoded_up_to_a_size() -> None:
    with closing(MediaDecoder(DecodeLimits(request_bytes=64 * 64 * 3 * 2))) as limited:
        asked = item(MediaKind.IMAGE, "png", PICTURE)
        assert len(limited.decode([asked] * 2, [PICTURE] * 2, EVERYTHING)) == 2
        third = replace(asked, param="messages[9]")
        with pytest.raises(RequestError, match=r"messages\[9\].*fewer") as caught:
            limited.decode([asked, asked, third], [PICTURE] * 3, EVERYTHING)
        assert caught.value.code is ErrorCode.MEDIA_TOO_LARGE
        assert len(limited.decode([asked], [PICTURE], EVERYTHING)) == 1


def test_a_file_that_breaks_its_decoders_is_refused_and_no_other(
    decoder: MediaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = kill_at_work(monkeypatch, signal.SIGSEGV, times=2)
    with pytest.raises(RequestError, match="broke its decoder") as caught:
        picture(decoder, "png", PICTURE)
    assert caught.value.code is ErrorCode.INVALID_MEDIA and len(killed) == 2
    picture(decoder, "png", PICTURE)


def test_a_request_whose_decoders_are_killed_may_come_again(
    decoder: MediaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at_work(monkeypatch, signal.SIGKILL, times=2)
    with pytest.raises(UnavailableError) as caught:
        picture(decoder, "png", PICTURE)
    assert caught.value.code is ErrorCode.INSUFFICIENT_MEMORY and caught.value.retry_after_s
    picture(decoder, "png", PICTURE)


def test_a_decoder_that_gets_little_of_the_processor_has_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The picture is not to blame for what else the machine does. One that does nothing at all is
    ended all the same."""
    monkeypatch.setattr(ProcessorWait, "more_s", lambda _: 100.0)
    monkeypatch.setattr("lmx.worker.isolation.child.MAX_SLOWDOWN", 1e6)
    with closing(MediaDecoder(DecodeLimits(deadline_s=0.01))) as starved:
        assert picture(starved, "png", PICTURE).pixels.shape == (64, 64, 3)
        monkeypatch.setattr(ProcessorWait, "more_s", lambda _: 0.0)
        with pytest.raises(RequestError) as caught:
            picture(starved, "jpeg", ENDLESS)
        assert caught.value.code is ErrorCode.MEDIA_TIMEOUT


PARENT = """
import sys, time
sys.path.insert(0, sys.argv[2])
from tests.support.rigs.decoding import picture
from tests.support.faults.hostile_media import picture as honest_picture
from tests.support.fakes.media_pieces import jpeg_of_scans
from lmx.worker.media.decoder import MediaDecoder
from lmx.protocol.models.decode_limits import DecodeLimits
decoder = MediaDecoder(DecodeLimits(deadline_s=10.0))
endless = jpeg_of_scans(3000, 4000)
picture(decoder, "png", honest_picture("png"))
print(decoder.pid, file=sys.stderr, flush=True)
if sys.argv[1] == "idle":
    time.sleep(60)
picture(decoder, "jpeg", endless)
"""


@pytest.mark.parametrize("at", ["idle", "work"])
def test_it_ends_with_its_worker(at: str, pytestconfig: pytest.Config) -> None:
    """Also while it decodes without end, and nobody is left to stop it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, at, str(pytestconfig.rootpath)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stderr is not None
        child = psutil.Process(int(parent.stderr.readline()))
        if at == "work":
            _wait_until_busy(child)
        parent.kill()
    gone, alive = psutil.wait_procs([child], DEADLINE_S)
    assert gone and not alive


def test_a_decoder_that_cant_begin_is_not_the_files_fault(tmp_path: Path) -> None:
    """A library is missing, say: that is for the log, and nobody is told that a file is bad."""
    decoder = MediaDecoder()
    decoder._environment = {"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    (tmp_path / "av").mkdir()
    (tmp_path / "av" / "__init__.py").write_text("raise ImportError('broken')")
    try:
        with pytest.raises(OSError, match="exited with 1"):
            picture(decoder, "png", PICTURE)
    finally:
        decoder.close()


def test_it_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LMX_PROCESS", "by which the supervisor finds it")
    with closing(MediaDecoder()) as decoder:
        picture(decoder, "png", PICTURE)
        environment = psutil.Process(decoder.pid).environ()
        assert {"PATH", "LMX_PROCESS"} <= environment.keys() and "HF_TOKEN" not in environment


@pytest.mark.parametrize(
    "reply",
    [
        b"\x09\0\0\0\0",
        b"\0\x01\0\0\0\0",
        b"\0\xff\xff\xff\xff",
        b"\0\x20\0\0\0" + np.array([9, 64, 64, 0, 0, 0, 0, 0], np.uint32).tobytes(),
        b"\0\x20\0\0\0" + np.array([0, 0, 0, 0, 0, 0, 0, 0], np.uint32).tobytes(),
    ],
)
def test_what_a_process_says_that_was_taken_over_is_not_believed(
    decoder: MediaDecoder, monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    """A result of more frames than were requested, or of none; an outcome that there is not."""
    left = bytearray(reply)

    def said(_: Exchange, length: int) -> bytearray:
        part = left[:length]
        del left[:length]
        return part

    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "read", said)
        with pytest.raises(RequestError, match="broke its decoder"):
            picture(decoder, "png", PICTURE)
    picture(decoder, "png", PICTURE)
