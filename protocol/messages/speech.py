"""Messages for turning speech into text, and text into speech: tasks
(:mod:`lmx.protocol.messages.tasks`). A sound to transcribe comes as a frame of its own behind the
message."""

from dataclasses import dataclass
from enum import StrEnum

from lmx.protocol.messages.media import MediaItem
from lmx.protocol.wire.codec import message


@message
@dataclass(frozen=True, slots=True)
class Transcribe:
    """Write down what is said in a sound. The reply is one Transcript or more, and then
    TaskFinished."""

    stream_id: int
    request_id: str
    deadline_s: float
    media: tuple[MediaItem, ...]
    """The sound: exactly one item."""
    translate: bool = False
    """Whether the text is in English, whatever language is spoken."""
    language: str | None = None
    """The language that is spoken, by its code or its English name. None: the model finds out."""
    prompt: str = ""
    """What was said before, or a text in the style that the transcript is to have."""
    temperature: float | None = None
    """With which temperature all tokens are drawn. None: the likeliest tokens are taken, and a
    higher temperature is tried where they make no good text."""
    words: bool = False
    """Whether it is found out when each word was said."""
    keep_alive_s: float | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word, and when it was said, in seconds from the beginning of the sound."""

    text: str
    """With the punctuation around it, and the space before it."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A sentence or so, and when it was said, in seconds from the beginning of the sound."""

    start_s: float
    end_s: float
    text: str
    """With the space before it."""
    tokens: tuple[int, ...]
    """The ids of the model's tokens, those of times included."""
    window: int
    """The beginning of the window in which the model heard it, in hundredths of a second."""
    temperature: float
    """The temperature with which its tokens were drawn."""
    avg_logprob: float
    """The mean of the logprobs of all tokens of its window."""
    compression_ratio: float
    """How much shorter the text of its window gets by compression."""
    no_speech_prob: float
    """How likely the model found it that nobody speaks in its window."""
    words: tuple[SpokenWord, ...] = ()
    """Its words, if they were requested."""


@message
@dataclass(frozen=True, slots=True)
class Transcript:
    """What is said in the next part of the sound. It is final."""

    stream_id: int
    language: str
    """The English name of the language that is spoken, in lower case. Empty: nobody has spoken
    yet."""
    duration_s: float
    """How long the whole sound takes."""
    heard_s: float
    """Up to which time the model has heard the sound."""
    tokens: int
    """How many tokens were made for this part. Those that were discarded don't count."""
    segments: tuple[SpokenSegment, ...] = ()
    """In order. None: nobody speaks in this part."""


class SoundFormat(StrEnum):
    """The forms in which a text that is read aloud comes, by OpenAI's names."""

    MP3 = "mp3"
    OPUS = "opus"
    """In Ogg."""
    AAC = "aac"
    """In ADTS."""
    FLAC = "flac"
    WAV = "wav"
    PCM = "pcm"
    """Samples of 16 bits in little endian, of one channel, without a header."""


@message
@dataclass(frozen=True, slots=True)
class Speak:
    """Read a text aloud. The reply is one Spoken or more, and then TaskFinished."""

    stream_id: int
    request_id: str
    deadline_s: float
    text: str
    voice: str | None = None
    """The name of a voice, or the end of one. None: the model's default."""
    format: SoundFormat = SoundFormat.MP3
    speed: float = 1.0
    """2 is twice as fast."""
    keep_alive_s: float | None = None
    owner: str = ""


@message
@dataclass(frozen=True, slots=True)
class Spoken:
    """The next part of a sound: that of a sentence or so. The parts, joined, are the file."""

    stream_id: int
    data: bytes
    duration_s: float
    """How long the sound is that was made for this part. Its last samples may come in the next
    one."""
