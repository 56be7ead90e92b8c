"""What requests may bring along besides text, from where, and what decoding it may take."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, model_validator

from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES
from lmx.supervisor.config.needs import Needs
from lmx.supervisor.config.values import DURATION, Seconds, Section, Size


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise ValueError(f"is no address and no network, as 192.168.1.0/24: {error}") from error


Networks = Annotated[
    tuple[Annotated[str, AfterValidator(_network)], ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=str | tuple[str, ...],
    ),
]
"""Addresses and networks. One may stand without a list."""


_MOST_PIXELS: Final = 1_000_000_000
_MOST_FRAMES: Final = 100_000

_MOST_DECODE_S: Final = 150.0
"""On a busy machine it is twice as much; the router waits for a request's turn 330 s longer than
the worker's queue may take."""

_Pixels = Annotated[int, Field(ge=10_000, le=_MOST_PIXELS)]
_Frames = Annotated[int, Field(ge=1, le=_MOST_FRAMES)]
_DecodeSize = Annotated[Size, Field(ge=1024**2)]
_DecodeMemory = Annotated[Size, Field(ge=64 * 1024**2)]
_DecodeSeconds = Annotated[float, Field(gt=0, le=_MOST_DECODE_S, allow_inf_nan=False), DURATION]


class ModelMediaConfig(Section):
    """How much the images, sounds and videos of this model's requests may be, where it differs from
    what `media` says."""

    max_image_pixels: _Pixels | None = Field(None, examples=[12_000_000])
    """Its own, instead of `media.max_image_pixels`."""
    max_frames: _Frames | None = Field(None, examples=[64])
    """Its own, instead of `media.max_frames`."""
    max_video_s: Seconds | None = Field(None, examples=[600])
    """Its own, instead of `media.max_video_s`."""
    max_audio_s: Seconds | None = Field(None, examples=[7200])
    """Its own, instead of `media.max_audio_s`."""
    decode_memory_bytes: _DecodeMemory | None = Field(None, examples=["256MiB"])
    """Its own, instead of `media.decode_memory_bytes`."""


class MediaConfig(Section):
    """Images, sounds and videos in requests: how the router fetches those that come as a URL, and
    how much decoding them may take."""

    allowed_networks: Annotated[Networks, Needs.ROUTER] = ()
    """Networks and addresses from which media are fetched though they are not public:
    `192.168.1.0/24`, `127.0.0.1`, `fd00::/8`. Whoever may send requests can then reach every HTTP
    server there. Without any, only public addresses are asked."""
    max_items: Annotated[int, Needs.ROUTER] = Field(32, ge=1, le=1000)
    """How many images, sounds and videos a request may have, those of earlier turns included."""
    max_item_bytes: Annotated[Size, Needs.ROUTER] = Field(
        ByteSize(32 * 1024**2), ge=1024, le=MAX_MESSAGE_BYTES
    )
    """A larger image, sound or video is refused with a 413."""
    max_held_bytes: Annotated[Size, Needs.ROUTER] = Field(ByteSize(512 * 1024**2), ge=1024**2)
    """The media of all requests that the router holds at a time, until their workers have them.
    A request for which there is no room gets a 429."""
    max_fetches: Annotated[int, Needs.ROUTER] = Field(16, ge=1, le=256)
    """How many media are fetched at a time, for all requests; half as many for one client. Others
    wait."""
    connect_timeout_s: Annotated[Seconds, Needs.ROUTER] = 5.0
    """The longest time for finding a server's address and connecting to it."""
    read_timeout_s: Annotated[Seconds, Needs.ROUTER] = 10.0
    """The longest time in which a server sends nothing."""
    total_timeout_s: Annotated[Seconds, Needs.ROUTER] = 30.0
    """The longest time for one URL, with its redirects, and with its turn among others."""
    max_image_pixels: Annotated[_Pixels, Needs.NEXT_WORKER] = 50_000_000
    """An image of more pixels is refused with a 413. The largest cameras of telephones make 8160 x
    6120. Decoding takes up to 18 bytes a pixel, see `decode_memory_bytes`."""
    max_frame_pixels: Annotated[_Pixels, Needs.NEXT_WORKER] = 36_000_000
    """A video whose frames have more pixels is refused with a 413. Its 36 million are 8K."""
    max_frames: Annotated[_Frames, Needs.NEXT_WORKER] = 768
    """How many frames of a video a model sees at most. Of a longer one they are spread evenly. A
    request can ask for fewer, and a model may take fewer."""
    max_frames_bytes: Annotated[_DecodeSize, Needs.NEXT_WORKER] = ByteSize(256 * 1024**2)
    """What these frames take together, at 3 bytes a pixel. If there were more, they are reduced in
    size."""
    max_video_s: Annotated[Seconds, Needs.NEXT_WORKER] = 4 * 3600.0
    """A longer video is refused with a 413."""
    max_audio_s: Annotated[Seconds, Needs.NEXT_WORKER] = 3600.0
    """A longer sound is refused with a 413, and so is a video with a longer one that the model
    would hear. A second takes 64 kB at 16,000 Hz."""
    max_decoded_bytes: Annotated[_DecodeSize, Needs.NEXT_WORKER] = ByteSize(512 * 1024**2)
    """What all images, sounds and videos of a request take together once they are decoded. With
    more it is refused with a 413."""
    decode_memory_bytes: Annotated[_DecodeMemory, Needs.NEXT_WORKER] = ByteSize(1024**3)
    """The memory that decoding may take. A file that takes more is refused with a 413. It is
    reserved for each loaded model that takes more than text, in addition to the model's own. Once
    the media of prompts that are not read yet take as much (1 GiB at most), further ones wait."""
    decode_cpu_s: Annotated[_DecodeSeconds, Needs.NEXT_WORKER] = 30.0
    """The processor's time for one image, sound or video. One that takes more is refused with a
    400. An hour of MP3 takes 12 s, an image of 12 million pixels 0.1 s."""
    decode_timeout_s: Annotated[_DecodeSeconds, Needs.NEXT_WORKER] = 120.0
    """The time for decoding all of a request. When it is over, the request gets a 504. The time in
    which the decoder waits for a processor does not count, up to as much again."""

    @model_validator(mode="after")
    def _frames_fit_request(self) -> MediaConfig:
        if self.max_frames_bytes > self.max_decoded_bytes:
            raise ValueError(
                f"max_frames_bytes ({self.max_frames_bytes}) is a part of max_decoded_bytes "
                f"({self.max_decoded_bytes}): it can't be more"
            )
        return self

    def decode_limits(self, own: ModelMediaConfig) -> DecodeLimits:
        """Return the limits for the worker of a model whose ``own`` keys go first."""
        return DecodeLimits(
            picture_pixels=own.max_image_pixels or self.max_image_pixels,
            frame_pixels=self.max_frame_pixels,
            frames=own.max_frames or self.max_frames,
            video_bytes=int(self.max_frames_bytes),
            video_s=own.max_video_s or self.max_video_s,
            sound_s=own.max_audio_s or self.max_audio_s,
            request_bytes=int(self.max_decoded_bytes),
            memory_bytes=int(own.decode_memory_bytes or self.decode_memory_bytes),
            cpu_s=self.decode_cpu_s,
            deadline_s=self.decode_timeout_s,
        )

    @property
    def spec(self) -> MediaLimits:
        """The same for the router."""
        return MediaLimits(
            self.allowed_networks,
            self.max_items,
            int(self.max_item_bytes),
            int(self.max_held_bytes),
            self.max_fetches,
            self.connect_timeout_s,
            self.read_timeout_s,
            self.total_timeout_s,
        )
