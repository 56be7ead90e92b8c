"""One sound on its way to a transcript: its windows, one after the other, and the
text before them as context."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from lmx.protocol.messages.speech import SpokenSegment, SpokenWord, Transcribe, Transcript
from lmx.worker.engine.values import TaskPiece, advance
from lmx.worker.media.values import Sound
from lmx.worker.mlx.speech.decoder import (
    SAMPLES_PER_FRAME,
    WINDOW_SAMPLES,
    EncodedWindow,
    SpeechNetwork,
)
from lmx.worker.mlx.speech.rules import (
    FORGET_ABOVE_TEMPERATURE,
    FRAMES_PER_SECOND,
    STAMPS_PER_SECOND,
    TEMPERATURES,
    WINDOW_FRAMES,
    Attempt,
    Cut,
    CutWindow,
    best_of,
    cut_window,
    is_poor,
    is_silence,
    next_seek,
)
from lmx.worker.mlx.speech.vocabulary import ENGLISH, language_name
from lmx.worker.mlx.speech.words import TimedWord, fit_segment, split_words, tidy, time_words

_QUIET: Final = 0.001
"""Where nothing is louder (-60 dB), nobody speaks. The model is not given that, because it tends
to write thanks and goodbyes where there is nothing."""

_LEAD_FRAMES: Final = 50
"""This much of what is quiet is encoded before what is loud."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of the sound that the model hears at once."""

    seek: int
    """The frame at which it begins."""
    frames: int
    """Its length, without the silence that fills it up."""

    @property
    def start_s(self) -> float:
        return self.seek / FRAMES_PER_SECOND


class Transcription:
    """The pieces of a Transcribe, as an iterator: each is a window. The next piece may be asked for
    when the one before is done."""

    def __init__(
        self,
        network: SpeechNetwork,
        task: Transcribe,
        sound: Sound,
        language: str | None,
        prompt: Sequence[int],
    ) -> None:
        """``language`` is the code of the language that is spoken; None if it is not known."""
        self._network = network
        self._task = task
        self._samples = sound.samples
        self._duration_s = sound.duration_s
        # The same sound gives the same text, also where tokens are drawn by chance.
        self._seed = int.from_bytes(sound.digest[:4], "little")
        self._frames = -(-sound.samples.size // SAMPLES_PER_FRAME)
        self._language = language
        self._language_known = language is not None
        """Whether it was given, or found in a window in which somebody speaks."""
        self._written = list(prompt)
        self._context_from = 0
        """From this token on, the text is context for the next window."""
        self._seek = 0
        self._spoken_s = 0.0
        """When the last word ended."""

    def __iter__(self) -> Iterator[TaskPiece]:
        return self

    def __next__(self) -> TaskPiece:
        if self._seek >= self._frames:
            raise StopIteration
        return partial(advance, self._transcribe())

    def _transcribe(self) -> Generator[None, None, Transcript]:
        begin = self._behind_quiet(self._seek)
        window = _Window(begin, min(WINDOW_FRAMES, self._frames - begin))
        if window.frames <= 0:
            return self._finish(window, 0)
        first = window.seek * SAMPLES_PER_FRAME
        encoded = yield from self._network.encode(self._samples[first : first + WINDOW_SAMPLES])
        if self._language is None:
            self._language = encoded.likeliest_language()
            yield
        attempt = yield from self._best_attempt(encoded, window)
        if is_silence(attempt):
            return self._finish(window, window.frames)
        cut = cut_window(attempt.tokens, self._network.vocabulary.stamp_begin, window.frames)
        segments = [self._segment(one, window, attempt) for one in cut.segments]
        advance = cut.advance_frames
        if self._task.words:
            segments = yield from self._with_words(encoded, window, segments)
            advance = self._behind_last_word(window, cut, segments)
        return self._finish(window, advance, segments, attempt)

    def _behind_quiet(self, seek: int) -> int:
        """Return the frame at which there is something to hear, from ``seek`` on; the number of all
        frames if there is nothing."""
        for begin in range(seek * SAMPLES_PER_FRAME, self._samples.size, WINDOW_SAMPLES):
            loud = np.abs(self._samples[begin : begin + WINDOW_SAMPLES]) >= _QUIET
            if loud.any():
                frame = (begin + int(loud.argmax())) // SAMPLES_PER_FRAME
                return max(seek, frame - _LEAD_FRAMES)
        return self._frames

    def _best_attempt(
        self, encoded: EncodedWindow, window: _Window
    ) -> Generator[None, None, Attempt]:
        given = self._task.temperature
        most_context = self._network.most_tokens - 1
        before = self._written[self._context_from :][-most_context:]
        attempts: list[Attempt] = []
        for number, temperature in enumerate((given,) if given else TEMPERATURES):
            seed = self._seed + window.seek * len(TEMPERATURES) + number
            attempt = yield from encoded.write(self._begin(), before, temperature, seed)
            if not is_poor(attempt):
                return attempt
            attempts.append(attempt)
            # It may be just the context that the text repeats.
            before = []
        return best_of(attempts)

    def _begin(self) -> tuple[int, ...]:
        language = self._language or ENGLISH
        return self._network.vocabulary.begin(language, translate=self._task.translate)

    def _segment(self, cut: Cut, window: _Window, attempt: Attempt) -> SpokenSegment:
        return SpokenSegment(
            start_s=self._clock(window.start_s + cut.start / STAMPS_PER_SECOND),
            end_s=self._clock(window.start_s + cut.end / STAMPS_PER_SECOND),
            text=self._network.vocabulary.decode(cut.tokens),
            tokens=cut.tokens,
            window=window.seek,
            temperature=attempt.temperature,
            avg_logprob=attempt.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=attempt.no_speech_prob,
        )

    def _with_words(
        self, encoded: EncodedWindow, window: _Window, segments: Sequence[SpokenSegment]
    ) -> Generator[None, None, list[SpokenSegment]]:
        """Return the segments with their words, and with the times of these."""
        vocabulary = self._network.vocabulary
        texts = [[token for token in one.tokens if token < vocabulary.end] for one in segments]
        together = [token for text in texts for token in text]
        if not together:
            return list(segments)
        matrix = yield from encoded.attention(self._begin(), together, window.frames)
        yield
        words = split_words(together, vocabulary.decode, self._language or ENGLISH)
        timed, median_s = tidy(time_words(words, matrix))
        left = iter(timed)
        result = []
        for segment, text in zip(segments, texts, strict=True):
            own = [self._shifted(word, window) for word in _next_words(left, len(text))]
            own = fit_segment(own, segment.start_s, segment.end_s, median_s, self._spoken_s)
            if own:
                segment = replace(
                    segment,
                    start_s=round(own[0].start_s, 2),
                    end_s=round(own[-1].end_s, 2),
                    words=tuple(
                        SpokenWord(word.text, round(word.start_s, 2), round(word.end_s, 2))
                        for word in own
                    ),
                )
                self._spoken_s = segment.end_s
            result.append(segment)
        return result

    def _behind_last_word(
        self, window: _Window, cut: CutWindow, segments: Sequence[SpokenSegment]
    ) -> int:
        """Return how far behind this window's beginning the next one begins: right behind the last
        word, unless the model has encoded the window to its end."""
        ends_s = [one.words[-1].end_s for one in segments if one.words]
        if cut.whole or not ends_s or ends_s[-1] <= window.start_s:
            return cut.advance_frames
        return round((ends_s[-1] - window.start_s) * FRAMES_PER_SECOND)

    def _shifted(self, word: TimedWord, window: _Window) -> TimedWord:
        return replace(
            word,
            start_s=self._clock(window.start_s + word.start_s),
            end_s=self._clock(window.start_s + word.end_s),
        )

    def _clock(self, time_s: float) -> float:
        # The model may write stamps in the silence that fills up the last window.
        return round(min(time_s, self._duration_s), 2)

    def _finish(
        self,
        window: _Window,
        advance_frames: int,
        segments: Sequence[SpokenSegment] = (),
        attempt: Attempt | None = None,
    ) -> Transcript:
        self._seek = next_seek(window.seek, advance_frames)
        kept = [one for one in segments if one.text.strip() and one.end_s > one.start_s]
        if kept:
            self._language_known = True
        elif not self._language_known:
            self._language = None
        self._written += [token for one in kept for token in one.tokens]
        if attempt is not None and attempt.temperature > FORGET_ABOVE_TEMPERATURE:
            self._context_from = len(self._written)
        return Transcript(
            self._task.stream_id,
            language_name(self._language) if self._language else "",
            round(self._duration_s, 2),
            round(min(self._seek / FRAMES_PER_SECOND, self._duration_s), 2),
            len(attempt.tokens) if attempt is not None else 0,
            tuple(kept),
        )


def _next_words(words: Iterator[TimedWord], tokens: int) -> Iterator[TimedWord]:
    """Take the words of the next ``tokens`` tokens."""
    taken = 0
    while taken < tokens and (word := next(words, None)) is not None:
        taken += word.tokens
        yield word
