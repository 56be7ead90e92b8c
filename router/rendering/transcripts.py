"""Transcripts in the forms of OpenAI's API. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NotRequired

import orjson

from lmx.protocol.messages.speech import SpokenSegment, SpokenWord, Transcript
from lmx.router.http.responses import Answer

AUDIO_TOKENS_PER_SECOND: Final = 50


@dataclass(frozen=True, slots=True)
class CompleteTranscript:
    """All that was spoken in a sound."""

    segments: Sequence[SpokenSegment]
    language: str
    """The English name of the language that is spoken; "" if nobody speaks."""
    duration_s: float
    input_tokens: int
    """The tokens of the sound and of the prompt."""
    output_tokens: int

    @property
    def text(self) -> str:
        """The text of all segments."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> list[SpokenWord]:
        """The words of all segments; none if they were not requested."""
        return [word for segment in self.segments for word in segment.words]


class AudioSeconds(Answer):
    """How much was transcribed."""

    type: Literal["duration"]
    seconds: int
    """The length of the sound, rounded up."""


class Transcription(Answer):
    """What is spoken in a sound."""

    text: str
    """The text; empty if nobody speaks."""
    usage: AudioSeconds
    """How much was transcribed."""


class TranscriptionSegment(Answer):
    """A sentence or so."""

    id: int
    """Its place, from 0."""
    seek: int
    """The beginning of the window in which the model found it, in hundredths of a second."""
    start: float
    """When it begins, in seconds."""
    end: float
    """When it ends, in seconds."""
    text: str
    """With the space before it."""
    tokens: Sequence[int]
    """The model's tokens, those of times included."""
    temperature: float
    """The temperature with which the tokens were drawn."""
    avg_logprob: float
    """The mean logprob of the window's tokens."""
    compression_ratio: float
    """How much shorter the window's text gets by compression: above 2.4 it repeats itself."""
    no_speech_prob: float
    """How likely the model found it that nobody speaks in the window."""


class TranscriptionWord(Answer):
    """A word."""

    word: str
    """With the punctuation around it."""
    start: float
    """When it begins, in seconds."""
    end: float
    """When it ends, in seconds."""


class VerboseTranscription(Answer):
    """All that is known of a transcript, for `verbose_json`."""

    task: Literal["transcribe", "translate"]
    language: str
    """The English name of the text's language, in lower case; empty if nobody speaks."""
    duration: float
    """The length of the sound, in seconds."""
    text: str
    words: NotRequired[list[TranscriptionWord] | None]
    """The words, if they were requested."""
    segments: NotRequired[list[TranscriptionSegment] | None]
    """The segments, unless only words were requested."""
    usage: AudioSeconds
    """How much was transcribed."""


class TranscriptDelta(Answer):
    """The text of some more segments, in a stream."""

    type: Literal["transcript.text.delta"]
    delta: str
    """The text. All of them, joined, are the whole."""


class InputTokenDetails(Answer):
    """What the input tokens stand for."""

    audio_tokens: int
    """50 for each second."""
    text_tokens: int
    """Those of the prompt."""


class AudioTokens(Answer):
    """How many tokens a transcript took."""

    type: Literal["tokens"]
    input_tokens: int
    """The tokens of the sound and of the prompt."""
    input_token_details: InputTokenDetails
    output_tokens: int
    """The tokens of the text, those of times included."""
    total_tokens: int


class TranscriptDone(Answer):
    """The end of a stream."""

    type: Literal["transcript.text.done"]
    text: str
    """The whole text."""
    usage: AudioTokens
    """How many tokens it took."""


def complete_transcript(parts: Iterable[Transcript], input_tokens: int) -> CompleteTranscript:
    """Return the parts of a transcript as one, in order; there is at least one."""
    parts = list(parts)
    return CompleteTranscript(
        [segment for part in parts for segment in part.segments],
        next((part.language for part in reversed(parts) if part.language), ""),
        parts[-1].duration_s,
        input_tokens,
        sum(part.tokens for part in parts),
    )


def json_transcript(whole: CompleteTranscript) -> bytes:
    """Return the text, as JSON."""
    return orjson.dumps(Transcription(text=whole.text, usage=_seconds(whole)))


def verbose_transcript(
    whole: CompleteTranscript, *, translated: bool, segments: bool, words: bool
) -> bytes:
    """Return all that is known, as JSON, with segments and words as they are wanted."""
    shown: VerboseTranscription = {
        "task": "translate" if translated else "transcribe",
        "language": "english" if translated else whole.language,
        "duration": whole.duration_s,
        "text": whole.text,
        "usage": _seconds(whole),
    }
    if words:
        shown["words"] = [
            {"word": word.text.strip(), "start": word.start_s, "end": word.end_s}
            for word in whole.words
        ]
    if segments:
        shown["segments"] = [_segment(index, one) for index, one in enumerate(whole.segments)]
    return orjson.dumps(shown)


def plain_transcript(whole: CompleteTranscript) -> bytes:
    """Return the text and a line break."""
    return f"{whole.text}\n".encode()


def srt_transcript(whole: CompleteTranscript) -> bytes:
    """Return SubRip subtitles."""
    blocks = [
        f"{index}\n{_clock(one.start_s, ',')} --> {_clock(one.end_s, ',')}\n{_line(one.text)}\n\n"
        for index, one in enumerate(whole.segments, start=1)
    ]
    return "".join(blocks).encode()


def vtt_transcript(whole: CompleteTranscript) -> bytes:
    """Return WebVTT subtitles."""
    blocks = [
        f"{_clock(one.start_s, '.')} --> {_clock(one.end_s, '.')}\n{_vtt_line(one.text)}\n\n"
        for one in whole.segments
    ]
    return "".join(["WEBVTT\n\n", *blocks]).encode()


JSON: Final = "application/json"
VERBOSE: Final = "verbose_json"
"""The response format that shows what the request chose to see, and so has no place in the
table."""

FORMATS: Final[dict[str, tuple[str, Callable[[CompleteTranscript], bytes]]]] = {
    "json": (JSON, json_transcript),
    "text": ("text/plain", plain_transcript),
    "srt": ("text/plain", srt_transcript),
    "vtt": ("text/plain", vtt_transcript),
}
"""The media type and the writer of each response format, but for ``VERBOSE``."""


class TranscriptEvents:
    """Writes the events of one transcript's stream."""

    def __init__(self) -> None:
        self._begun = False

    def delta(self, part: Transcript) -> bytes:
        """Return the event for the next part; nothing if it has no text."""
        text = "".join(segment.text for segment in part.segments)
        if not self._begun:
            text = text.lstrip()
        if not text:
            return b""
        self._begun = True
        return _event(TranscriptDelta(type="transcript.text.delta", delta=text))

    def done(self, whole: CompleteTranscript) -> bytes:
        """Return the last event."""
        audio_tokens = min(whole.input_tokens, int(whole.duration_s * AUDIO_TOKENS_PER_SECOND))
        usage: AudioTokens = {
            "type": "tokens",
            "input_tokens": whole.input_tokens,
            "input_token_details": {
                "audio_tokens": audio_tokens,
                "text_tokens": whole.input_tokens - audio_tokens,
            },
            "output_tokens": whole.output_tokens,
            "total_tokens": whole.input_tokens + whole.output_tokens,
        }
        done = TranscriptDone(type="transcript.text.done", text=whole.text, usage=usage)
        return _event(done)


def _event(value: TranscriptDelta | TranscriptDone) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _segment(index: int, segment: SpokenSegment) -> TranscriptionSegment:
    return {
        "id": index,
        "seek": segment.window,
        "start": segment.start_s,
        "end": segment.end_s,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def _seconds(whole: CompleteTranscript) -> AudioSeconds:
    return {"type": "duration", "seconds": math.ceil(whole.duration_s)}


def _clock(time_s: float, mark: str) -> str:
    milliseconds = round(time_s * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    seconds, milliseconds = divmod(milliseconds, 1000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}{mark}{milliseconds:03d}"


def _line(text: str) -> str:
    # An arrow would be taken for the times of a subtitle, an empty line for its end.
    return " ".join(text.replace("-->", "->").split())


def _vtt_line(text: str) -> str:
    return _line(text).replace("&", "&amp;").replace("<", "&lt;")
