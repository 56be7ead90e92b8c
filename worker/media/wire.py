"""The messages between a worker and its decoding process: one request, one reply, over a socket.

A reply has no structure that needs a parser: a file may have taken the process over.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from lmx.protocol.states import MediaForm, MediaKind

REQUEST_HEAD: Final = struct.Struct("<IQ")
"""The length of a :class:`DecodeOrder` and that of the file, which follow."""

REPLY_HEAD: Final = struct.Struct("<BI")
"""An :class:`Outcome` and the length of its reason or of a :class:`ResultHead`, which follows."""

_RESULT_HEAD: Final = struct.Struct("<IIIIQd")


class Outcome(IntEnum):
    """The meaning of a reply."""

    DECODED = 0
    """A :class:`ResultHead`; then the times of the frames as numbers of 8 bytes, the pixels and the
    samples."""
    REFUSED = 1
    """The reason why the file can't be decoded, as UTF-8."""
    TOO_LARGE = 2
    """What there is too much of, as UTF-8."""
    OUT_OF_MEMORY = 3
    """Nothing."""


@dataclass(frozen=True, slots=True)
class DecodeOrder:
    """What is to be made of a file."""

    kind: MediaKind
    form: MediaForm
    rate_hz: int | None = None
    """The rate of the sound that is made; None: none is made, though a video have one."""
    fps: float = 1.0
    """How many frames of a second of a video are made."""
    max_frames: int = 1
    """The most frames; where ``fps`` would make more, they are spread evenly."""
    min_pixels: int | None = None
    """A picture or a frame of fewer pixels is enlarged."""
    max_pixels: int | None = None
    """A picture or a frame of more pixels is reduced."""
    cpu_s: float = 0.0
    """The processor's time that it may take."""
    timeout_s: float = 0.0
    """After this time the process ends, if nobody has ended it before."""

    def encode(self) -> bytes:
        """Return the order's bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, payload: bytes | bytearray) -> DecodeOrder:
        """Return the order that :meth:`encode` has encoded."""
        values: dict[str, Any] = json.loads(payload)
        return cls(
            **{**values, "kind": MediaKind(values["kind"]), "form": MediaForm(values["form"])}
        )


class ResultHead(NamedTuple):
    """The sizes of what was decoded. A picture is one frame; where there are no frames or no sound,
    their figures are 0."""

    frames: int
    height: int
    width: int
    rate_hz: int
    samples: int
    duration_s: float

    def encode(self) -> bytes:
        """Return the head's bytes."""
        return _RESULT_HEAD.pack(*self)

    @classmethod
    def decode(cls, data: bytes | bytearray) -> ResultHead:
        """Return the head of :meth:`encode`. Raises ``struct.error`` for another length."""
        return cls(*_RESULT_HEAD.unpack(data))

    @property
    def pixel_bytes(self) -> int:
        """How many bytes the pixels have."""
        return self.frames * self.height * self.width * 3

    @property
    def sample_bytes(self) -> int:
        """How many bytes the samples have."""
        return self.samples * 4
