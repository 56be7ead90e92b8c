"""What comes with the bytes of an image, a sound or a video: on the wire, the bytes are frames of
their own behind the message that lists their :class:`MediaItem`, in the same order."""

from dataclasses import dataclass

from lmx.protocol.states import MediaForm, MediaKind


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One image, sound or video of a request, without its bytes."""

    kind: MediaKind
    form: MediaForm
    """The container, as the first bytes of the content show it. It is what the content claims to
    be: only decoding shows whether it is."""
    param: str
    """The path of the part in the request, as ``messages[0].content[1].image_url``. Errors name
    it."""
    size_bytes: int
    """The length of the frame that holds the bytes."""
    sha256: bytes
    """The digest of the bytes, 32 bytes long."""
    detail: str = "auto"
    """How closely a model looks at an image: ``auto``, ``low`` or ``high``."""
    fps: float | None = None
    """How many frames of a second of a video the model sees. None: this is no video."""
    min_pixels: int | None = None
    """An image, or a frame of a video, of fewer pixels is enlarged. None: the model's own
    limit."""
    max_pixels: int | None = None
    """An image, or a frame of a video, of more pixels is reduced. None: the model's own limit."""
    max_frames: int | None = None
    """A video of more frames at ``fps`` is sampled less often. None: the worker's own limit."""
    use_audio_in_video: bool = True
    """Whether a model that hears gets the sound of a video too."""
