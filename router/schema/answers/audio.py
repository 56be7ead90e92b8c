"""What the routes for speech answer."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer


class AudioSeconds(Answer):
    """How much was heard."""

    type: Literal["duration"]
    seconds: int
    """The length of the sound, rounded up."""


class Transcription(Answer):
    """What is said in a sound."""

    text: str
    """The text; empty if nobody speaks."""
    usage: AudioSeconds
    """How much was heard."""


class TranscriptionSegment(Answer):
    """A sentence or so."""

    id: int
    """Its place, from 0."""
    seek: int
    """The beginning of the window in which the model heard it, in hundredths of a second."""
    start: float
    """When it begins, in seconds."""
    end: float
    """When it ends, in seconds."""
    text: str
    """With the space before it."""
    tokens: list[int]
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
    words: list[TranscriptionWord] | None = None
    """The words, if they were asked for."""
    segments: list[TranscriptionSegment] | None = None
    """The segments, unless only words were asked for."""
    usage: AudioSeconds
    """How much was heard."""


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
