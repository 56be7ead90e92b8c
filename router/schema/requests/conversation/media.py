"""The parts of a message that are an image, a sound or a video, in all the forms that clients send.

Source: OpenAI's API (`image_url`, `input_audio`), kiapi's (the others), and vLLM's and Qwen's
names for how closely a model looks.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, Tag

from lmx.protocol.states import MediaKind
from lmx.router.media.source import MediaSource, NamedFile, PartSource
from lmx.router.schema.requests.conversation.documents import document_text, file_text
from lmx.router.schema.validation import (
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    NonEmpty,
    Strict,
    invalid,
    missing,
)

DEFAULT_FPS: Final = 1.0
_MAX_FPS: Final = 240.0
"""Frames per second: more than cameras record."""

_MAX_PIXELS: Final = 2**28
_MAX_FRAMES: Final = 100_000
_LOW_PIXELS: Final = 512 * 512

Fps = Annotated[float, Field(gt=0, le=_MAX_FPS)]
_Pixels = Annotated[int, Field(ge=1, le=_MAX_PIXELS)]


class Reference(Strict):
    """Where the content of a part is: `url`, `data` or `file_id`, one of them."""

    url: NonEmpty | None = None
    """An http or https URL, or a data URL. The server fetches it."""
    data: NonEmpty | None = None
    """The content in base64. A URL is accepted here too."""
    file_id: NonEmpty | None = None
    """The id of a file that was uploaded to /v1/files with the same key."""
    format: str | None = None
    """It is accepted, and changes nothing: the type is detected from the content."""


class ImageReference(Reference):
    """Where an image is, and how closely the model looks at it."""

    detail: Literal["auto", "low", "high", "original"] | None = None
    """`low`: the model sees the image reduced to 262,144 pixels (512 x 512) at most. `high`,
    `original` and `auto`: as large as the model's own limits allow. Default: `auto`."""


_Content = Annotated[
    Annotated[NonEmpty, Tag(TEXT)] | Annotated[Reference, Tag(OBJECT)], TEXT_OR_OBJECT
]
_ImageContent = Annotated[
    Annotated[NonEmpty, Tag(TEXT)] | Annotated[ImageReference, Tag(OBJECT)], TEXT_OR_OBJECT
]


class PixelFields(Strict):
    """How large the model sees an image, or each frame of a video."""

    min_pixels: _Pixels | None = None
    """An image of fewer pixels is enlarged. The name is Qwen's. Default: the model's own."""
    max_pixels: _Pixels | None = None
    """An image of more pixels is reduced. The name is Qwen's. Default: the model's own."""


class ImageUrlPart(PixelFields):
    """An image."""

    type: Literal["image_url"]
    """An image."""
    image_url: _ImageContent
    """Where it is: an object with `url`, or the URL alone."""


class InputAudioPart(Strict):
    """A sound, in OpenAI's form."""

    type: Literal["input_audio"]
    """A sound."""
    input_audio: _Content
    """The sound: an object with `data`, or the content alone."""


class AudioUrlPart(Strict):
    """A sound."""

    type: Literal["audio_url"]
    """A sound."""
    audio_url: _Content
    """Where it is: an object with `url`, or the URL alone."""


class AudioPart(Strict):
    """A sound."""

    type: Literal["audio"]
    """A sound."""
    audio: _Content
    """A URL or base64, or an object with `url` or `data`."""


class VideoFields(PixelFields):
    """How a video is seen."""

    fps: Fps | None = None
    """Frames a second that are taken from it. Default: the request's `fps`."""
    max_frames: Annotated[int, Field(ge=1, le=_MAX_FRAMES)] | None = None
    """How many frames are taken at most; a longer video is sampled less often. The name is Qwen's.
    Default: the server's limit."""


class VideoUrlPart(VideoFields):
    """A video."""

    type: Literal["video_url"]
    """A video."""
    video_url: _Content
    """Where it is: an object with `url`, or the URL alone."""


class VideoPart(VideoFields):
    """A video."""

    type: Literal["video"]
    """A video."""
    video: _Content
    """A URL or base64, or an object with `url` or `data`."""


class InputVideoPart(VideoFields):
    """A video."""

    type: Literal["input_video"]
    """A video."""
    input_video: _Content
    """A URL or base64, or an object with `data` or `url`."""


MediaPart = (
    ImageUrlPart
    | InputAudioPart
    | AudioUrlPart
    | AudioPart
    | VideoUrlPart
    | VideoPart
    | InputVideoPart
)

KINDS: Final = {
    "image_url": MediaKind.IMAGE,
    "input_audio": MediaKind.AUDIO,
    "audio_url": MediaKind.AUDIO,
    "audio": MediaKind.AUDIO,
    "video_url": MediaKind.VIDEO,
    "video": MediaKind.VIDEO,
    "input_video": MediaKind.VIDEO,
}
"""The kind of each type of part, which has its content in a field of the same name."""


class FileReference(Strict):
    """Where a file is: `file_id` or `file_data`, one of the two."""

    file_id: NonEmpty | None = None
    """The id of a file that was uploaded to /v1/files with the same key: a text, an image, a sound
    or a video."""
    file_data: NonEmpty | None = None
    """The content in base64, or a data URL. It is a text in UTF-8 or UTF-16: a PDF is a 400."""
    filename: str | None = None
    """The name that a model reads above a text. Default: that of the upload."""


class FilePart(Strict):
    """A file. The model reads a text with its name; an image, a sound or a video is one."""

    type: Literal["file"]
    """A file."""
    file: FileReference
    """Where it is."""


class VideoDefaults(Strict):
    """How the frames and the sound of a request's videos are used."""

    fps: Fps | None = None
    """Frames a second that are taken from a video. The name is kiapi's. Default: 1."""
    use_audio_in_video: bool | None = None
    """Whether a model with audio input gets a video's sound too. The name is kiapi's. Default:
    true."""


def source_of(part: MediaPart, path: str, defaults: VideoDefaults) -> PartSource:
    """Return where the content of the part at ``path`` comes from.

    Raises :class:`RequestError` (400) for a reference without content, or with two.
    """
    kind = KINDS[part.type]
    content = getattr(part, part.type)
    param = f"{path}.{part.type}"
    detail: str | None = None
    file_id: str | None = None
    if isinstance(content, Reference):
        if isinstance(content, ImageReference):
            detail = content.detail
        file_id = content.file_id
        content = _text_of(content, param)
    if detail == "original":
        detail = "high"
    seen: dict[str, Any] = {"detail": detail or "auto"}
    if isinstance(part, PixelFields):
        _check_pixels(part, path)
        most = part.max_pixels
        if detail == "low":
            most = min(most or _LOW_PIXELS, _LOW_PIXELS)
        seen |= {"min_pixels": part.min_pixels, "max_pixels": most}
    if isinstance(part, VideoFields):
        seen |= {**_as_video(part.fps, defaults), "max_frames": part.max_frames}
    if file_id is not None:
        return NamedFile(file_id, f"{param}.file_id", frozenset({kind}), seen)
    return MediaSource(kind, param, content, **seen)


def file_of(part: FilePart, path: str, defaults: VideoDefaults) -> NamedFile | str:
    """Return which file the part at ``path`` names, or the document that is in it as a model reads
    it. Raises :class:`RequestError` (400)."""
    file, param = part.file, f"{path}.file"
    if file.file_id is not None:
        if file.file_data is not None:
            raise invalid(param, "has `file_id` and `file_data`: send one of the two.")
        return NamedFile(
            file.file_id,
            f"{param}.file_id",
            frozenset({*MediaKind, None}),
            _as_video(None, defaults),
            (("title", file.filename),),
            shows_name=True,
        )
    if file.file_data is None:
        raise missing(param, "has no content: it needs `file_id` or `file_data`.")
    text = file_text(file.file_data, f"{param}.file_data")
    return document_text(text, [("title", file.filename)])


def _as_video(fps: float | None, defaults: VideoDefaults) -> dict[str, Any]:
    with_sound = defaults.use_audio_in_video
    return {
        "fps": fps or defaults.fps or DEFAULT_FPS,
        "use_audio_in_video": True if with_sound is None else with_sound,
    }


def _text_of(reference: Reference, param: str) -> str:
    """Return the URL or the content of a reference, which is empty if it names a file."""
    given = {
        name: text
        for name in ("url", "data", "file_id")
        if (text := getattr(reference, name)) is not None
    }
    if not given:
        raise missing(param, "has no content: it needs `url`, `data` or `file_id`.")
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name in given)
        raise invalid(param, f"has {names}: send one of the two.")
    (name,) = given
    return "" if name == "file_id" else given[name]


def _check_pixels(part: PixelFields, path: str) -> None:
    least, most = part.min_pixels, part.max_pixels
    if least is not None and most is not None and least > most:
        raise invalid(f"{path}.min_pixels", f"({least}) is more than `max_pixels` ({most}).")
