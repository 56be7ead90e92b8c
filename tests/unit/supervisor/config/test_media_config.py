"""The keys for the images, sounds and videos of requests, and what workers get of them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmx.protocol.messages.peers import PeerList
from lmx.protocol.models.decode_limits import AT_REST_BYTES, DecodeLimits
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.diff import compare
from lmx.supervisor.config.schema import Config
from lmx.supervisor.core.actions import WorkerStart
from lmx.supervisor.memory.plan import MemoryPlan
from lmx.supervisor.processes.specs import worker_spec
from lmx.supervisor.state.home import Home

MIB = 1024**2


def config(media: dict[str, Any] | None = None, own: dict[str, Any] | None = None) -> Config:
    model = {"id": "m", "source": "/m", "media": own or {}}
    return Config.model_validate({"media": media or {}, "models": [model]})


def limits(media: dict[str, Any] | None = None, own: dict[str, Any] | None = None) -> DecodeLimits:
    found = config(media, own)
    plan = MemoryPlan(99, decoder_bytes=7)
    home = Home(Path("/home/lmx"))
    start = WorkerStart("i", found.models[0], Path("/m"), ModelKind.CHAT, plan)
    return worker_spec(found, home, start, PeerList()).decode


def test_without_keys_the_limits_are_those_of_the_code() -> None:
    assert limits() == DecodeLimits()


def test_each_key_sets_one_limit_and_that_of_a_model_goes_first() -> None:
    reported = {
        "max_image_pixels": 20_000, "max_frame_pixels": 30_000, "max_frames": 4,
        "max_frames_bytes": "5MiB", "max_video_s": 6, "max_audio_s": 7, "max_decoded_bytes": "8MiB",
        "decode_memory_bytes": "90MiB", "decode_cpu_s": 10, "decode_timeout_s": 11,
    }  # fmt: skip
    made = DecodeLimits(
        picture_pixels=20_000, frame_pixels=30_000, frames=4, video_bytes=5 * MIB, video_s=6,
        sound_s=7, request_bytes=8 * MIB, memory_bytes=90 * MIB, cpu_s=10, deadline_s=11,
    )  # fmt: skip
    assert limits(reported) == made
    own = {
        "max_image_pixels": 99_999, "max_frames": 1, "max_video_s": 2, "max_audio_s": 3,
        "decode_memory_bytes": "64MiB",
    }  # fmt: skip
    assert limits(reported, own) == DecodeLimits(
        picture_pixels=99_999, frame_pixels=30_000, frames=1, video_bytes=5 * MIB, video_s=2,
        sound_s=3, request_bytes=8 * MIB, memory_bytes=64 * MIB, cpu_s=10, deadline_s=11,
    )  # fmt: skip
    assert limits(reported).process_bytes == 90 * MIB + AT_REST_BYTES


@pytest.mark.parametrize(
    "media",
    [
        {"max_image_pixels": 0},
        {"max_frames": 0},
        {"max_audio_s": -1},
        {"decode_memory_bytes": "1MiB"},
        # The router gives a worker 180 s.
        {"decode_timeout_s": 151},
        {"max_frames_bytes": "9MiB", "max_decoded_bytes": "8MiB"},
    ],
)
def test_what_makes_no_sense_is_refused(media: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(media))):
        config(media)


def test_a_changed_limit_waits_for_the_next_worker() -> None:
    diff = compare(config(), config({"max_frames": 9}, {"max_audio_s": 60}))
    assert not diff.router and diff.models.touched == ("m",) and not diff.models.respawned
    assert diff.sentences == (
        "media: for workers that are started from now on (max_frames 768 -> 9)",
        "m: for its next worker (media.max_audio_s none -> 60)",
    )
