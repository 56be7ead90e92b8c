"""Every form of a sound decodes to what was spoken, and comes while it is spoken."""

from io import BytesIO
from typing import Any

import av
import numpy as np
import pytest

from lmx.protocol.messages.speech import SoundFormat
from lmx.worker.mlx.voices.sound_file import begin_file

RATE_HZ = 24_000


def tone(seconds: float) -> np.ndarray[Any, Any]:
    times = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    return (np.sin(2 * np.pi * 440 * times) * 16_000).astype(np.int16)


def decoded(content: bytes) -> tuple[np.ndarray[Any, Any], int]:
    with av.open(BytesIO(content), "r") as container:
        frames = list(container.decode(audio=0))
    samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
    if samples.dtype.kind == "i":
        samples = samples / np.iinfo(samples.dtype).max
    return samples, frames[0].sample_rate


@pytest.mark.parametrize("form", list(SoundFormat))
def test_a_file_that_grows_is_whole_at_its_end(form: SoundFormat) -> None:
    file = begin_file(form, RATE_HZ)
    parts = [file.add(tone(1.5)) for _ in range(4)]
    assert all(parts), "each sentence brings bytes, before the next one is there"
    content = b"".join((*parts, file.end()))
    if form is SoundFormat.PCM:
        assert content == tone(1.5).astype("<i2").tobytes() * 4
        return
    samples, rate_hz = decoded(content)
    assert len(samples) / rate_hz == pytest.approx(6.0, abs=0.15)
    loud = np.sqrt(np.mean(np.square(samples)))
    assert loud == pytest.approx(0.345, rel=0.1), "the tone is as loud as it was"


@pytest.mark.parametrize("form", list(SoundFormat))
def test_a_file_without_sound_ends(form: SoundFormat) -> None:
    assert isinstance(begin_file(form, RATE_HZ).end(), bytes)
