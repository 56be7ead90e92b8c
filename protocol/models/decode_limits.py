"""How much the images, sounds and videos of requests may be and may take where they are decoded.
This module is pure, and light: the decoding process itself imports it."""

from dataclasses import dataclass
from typing import Final

AT_REST_BYTES: Final = 96 << 20
"""What the decoding process may take without a file. It takes 52 MiB on Linux (resident); the rest
is for other systems."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """All limits of decoding. The figures of a file's header are checked before it is decoded, and
    what it is really made of while it is decoded. ``side_ratio`` and ``packets`` can't be
    configured: nothing that is sent in good faith comes near them."""

    picture_pixels: int = 50_000_000
    """The pixels of a picture. The largest cameras of telephones make 8160 x 6120."""
    side_ratio: int = 200
    """How many times as long the longer side of a picture or a frame may be as the shorter one.
    The processors of the models refuse more too, each in its own words."""
    frame_pixels: int = 36_000_000
    """The pixels of a video's frames before they are reduced: 8K, which is 8192 x 4320."""
    frames: int = 768
    """The frames of a video that a model sees. Of longer videos it sees fewer in a second."""
    video_bytes: int = 256 * 1024**2
    """What the frames that a model sees take together. If there were more, they are reduced in
    size."""
    video_s: float = 4 * 3600.0
    """How long a video may take."""
    packets: int = 1_000_000
    """The packets of a video's tracks, which are about its frames, and of a sound."""
    sound_s: float = 3600.0
    """How long a sound may take, and that of a video that is heard."""
    request_bytes: int = 512 * 1024**2
    """What all decoded parts of one request may take together."""
    memory_bytes: int = 1 << 30
    """What the decoding process may take beyond what it takes at rest. A picture of the most pixels
    takes about 900 MB."""
    cpu_s: float = 30.0
    """The processor's time for one item. A file that takes more has been made for that, or is too
    long for a request. An hour of MP3 takes 12 s of it, a picture of 12 million pixels 0.1 s."""
    deadline_s: float = 120.0
    """The time for all items of a request. It is longer than an item's processor time, because the
    machine may be busy."""

    @property
    def process_bytes(self) -> int:
        """What the decoding process takes at most: with more it is ended."""
        return AT_REST_BYTES + self.memory_bytes
