"""The fields of the forms that are sent with speech, and of the body that asks for it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from lmx.protocol.messages.speech import SoundFormat, Speak, Transcribe
from lmx.router.http.bodies.form import FormField, Upload
from lmx.router.schema.requests.generation import ResidencyFields, keep_alive_of
from lmx.router.schema.validation import (
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    Strict,
    invalid,
    unsupported,
    validated,
)

TRANSCRIBE_DEADLINE_S: Final = 3600.0
"""For hours of speech, or for others' hours before it. A worker that is stuck is found sooner, by
its progress."""

SPEAK_DEADLINE_S: Final = 1800.0
"""For the longest text, on a slow machine."""

_NUMBERS: Final = frozenset({"temperature", "ttl"})
_LISTS: Final = frozenset({"timestamp_granularities"})
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


def _file(value: object) -> Upload:
    if not isinstance(value, Upload):
        raise PydanticCustomError("file_type", "a file")
    return value


# Any, because pydantic would describe the class in the API's description.
FileField = Annotated[
    Any,
    AfterValidator(_file),
    WithJsonSchema({"type": "string", "contentMediaType": "application/octet-stream"}),
]


class TranslationRequest(ResidencyFields):
    """The form of POST /v1/audio/translations."""

    file: FileField
    """The sound, as a file: flac, mp3, m4a, mp4, mov, mkv, ogg, wav, webm or aac."""
    model: str | None = None
    """The id, an alias or the source of a transcription model. Default: the configured one."""
    prompt: Annotated[str, Field(max_length=8192)] | None = None
    """The text before, or a text in the style and with the names that the transcript is to have.
    The model reads its end of 200 words or so."""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] | None = None
    """The form of the answer: JSON with the text, the text alone, subtitles, or JSON with all that
    is known. Default: json."""
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    """How freely the tokens are sampled. 0 takes the likeliest ones, and draws again at higher
    temperatures where these make no good text. Default: 0."""

    @property
    def sound(self) -> bytes:
        """The content of the file."""
        content: bytes = self.file.content
        return content


class TranscriptionRequest(TranslationRequest):
    """The form of POST /v1/audio/transcriptions."""

    language: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The language that is spoken, as ISO 639-1 or by its English name. Default: the model finds
    out."""
    timestamp_granularities: (
        Annotated[list[Literal["word", "segment"]], Field(max_length=2)] | None
    ) = None
    """Whether the answer has the times of segments, of words, or both; only with `verbose_json`. A
    form names it `timestamp_granularities[]`. Default: segment."""
    stream: bool | None = None
    """Whether the text is sent as it is written, as server-sent events; only with json and text.
    Default: false."""

    @property
    def words(self) -> bool:
        """Whether the times of words are wanted."""
        return "word" in (self.timestamp_granularities or ())

    @property
    def segments(self) -> bool:
        """Whether the times of segments are wanted."""
        return "segment" in (self.timestamp_granularities or ("segment",))


class VoiceId(Strict):
    """A voice, as an object."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    """The name of the voice."""


_Voice = Annotated[
    Annotated[str, Field(min_length=1, max_length=64), Tag(TEXT)] | Annotated[VoiceId, Tag(OBJECT)],
    TEXT_OR_OBJECT,
]


class SpeechRequest(ResidencyFields):
    """The body of POST /v1/audio/speech."""

    model: str | None = None
    """The id, an alias or the source of a model that reads texts aloud. Default: the configured
    one."""
    input: Annotated[str, Field(min_length=1, max_length=4096)]
    """The text, which is read sentence by sentence."""
    voice: _Voice | None = None
    """The name of one of the model's voices (`GET /v1/audio/voices`), as a string or as an object
    with an `id`. `echo` is also `am_echo`; a name of OpenAI's for which the model has no voice is
    its default one. Default: the model's."""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    """The form of the sound: `opus` is in Ogg, `aac` in ADTS, and `pcm` 16 bits in little endian,
    without a header. Default: mp3."""
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    """How fast it is read; only for models that can speak slower and faster. Default: 1."""
    stream_format: Literal["audio", "sse"] | None = None
    """Whether the bytes of the sound come as they are, or as server-sent events. Default: audio."""


def parse_speech(body: dict[str, Any]) -> tuple[SpeechRequest, Speak]:
    """Return the checked request, and the request to a worker, without its id. Raises
    :class:`RequestError` (400) for the first fault."""
    request = validated(SpeechRequest, body)
    if not request.input.strip():
        raise invalid("input", "has nothing to say: it is empty.")
    voice = request.voice
    task = Speak(
        0,
        "",
        SPEAK_DEADLINE_S,
        request.input,
        voice.id if isinstance(voice, VoiceId) else voice,
        SoundFormat(request.response_format or "mp3"),
        request.speed or 1.0,
        keep_alive_of(request),
    )
    return request, task


def parse_transcription(
    form: Mapping[str, Sequence[FormField]],
) -> tuple[TranscriptionRequest, Transcribe]:
    """Return the checked request, and the request to a worker, without its id and its sound.
    Raises :class:`RequestError` (400) for the first fault."""
    request = validated(TranscriptionRequest, _body(form))
    wanted = request.response_format or "json"
    if request.timestamp_granularities and wanted != "verbose_json":
        raise unsupported(
            "timestamp_granularities", f"is for the `response_format` verbose_json, got {wanted!r}."
        )
    if request.stream and wanted not in ("json", "text"):
        raise unsupported("stream", f"is for the `response_format` json and text, got {wanted!r}.")
    return request, _task(request, False, request.language, words=request.words)


def parse_translation(
    form: Mapping[str, Sequence[FormField]],
) -> tuple[TranslationRequest, Transcribe]:
    """Return the same for a translation."""
    request = validated(TranslationRequest, _body(form))
    return request, _task(request, True, None, words=False)


def ignored_form_fields(
    form: Mapping[str, Sequence[FormField]], schema: type[TranslationRequest]
) -> list[str]:
    """Return the fields of a form that change nothing."""
    return [name for name in form if name.removesuffix("[]") not in schema.model_fields]


def _task(
    request: TranslationRequest, translate: bool, language: str | None, *, words: bool
) -> Transcribe:
    return Transcribe(
        0,
        "",
        TRANSCRIBE_DEADLINE_S,
        (),
        translate,
        language,
        request.prompt or "",
        request.temperature or None,
        words,
        keep_alive_of(request),
    )


def _body(form: Mapping[str, Sequence[FormField]]) -> dict[str, Any]:
    """Return a form as the object that its fields describe. A field that is there twice is
    refused; one that is empty counts as absent."""
    given: defaultdict[str, list[FormField]] = defaultdict(list)
    for full_name, values in form.items():
        given[full_name.removesuffix("[]")] += values
    body: dict[str, Any] = {}
    for name, values in given.items():
        if name in _LISTS:
            body[name] = [value for value in values if value != ""] or None
        elif len(values) > 1:
            raise invalid(name[:80], f"is there {len(values)} times: send it once.")
        elif values[0] != "":
            body[name] = _value(name, values[0])
    return body


def _value(name: str, given: FormField) -> Any:
    """Return what a field's text stands for; the text itself where it stands for nothing."""
    if not isinstance(given, str):
        return given
    if name == "stream":
        return _BOOLEANS.get(given.lower(), given)
    if name in _NUMBERS:
        try:
            number = float(given)
        except ValueError:
            return given
        return int(number) if name == "ttl" and number.is_integer() else number
    return given
