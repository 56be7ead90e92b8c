"""One text on its way to a sound: its sentences, one after the other."""

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.speech import Speak, Spoken
from lmx.worker.engine.values import TaskPiece
from lmx.worker.mlx.voices.sound_file import begin_file

_MOST_SOUND_S: Final = 1800
"""How long the sound of a request may be: the longest text, read at a quarter of the speed."""


class SpeechModel(Protocol):
    """A model whose weights are in memory."""

    model: Any
    rate_hz: int
    own_speed: bool
    """Whether it can speak slower and faster."""
    default: str
    """The voice that speaks if none is named, where it is there."""

    def read(self, text: str, voice: str, speed: float) -> Sequence[str]:
        """Return the utterances of a text as the model takes them. Prompt thread."""

    def tokens(self, utterance: str) -> int:
        """Return how many tokens an utterance has. Prompt thread."""

    def speak(
        self, utterances: Sequence[str], voice: str, speed: float
    ) -> Generator[np.ndarray[Any, Any] | None]:
        """Yield the samples of each utterance, -1 to 1, and None between two parts of the work.
        Engine thread."""


class Speech:
    """The pieces of a Speak, as an iterator: each is a sentence. The next one may be requested when
    the one before is done."""

    def __init__(
        self, task: Speak, speech: SpeechModel, utterances: Sequence[str], voice: str
    ) -> None:
        self._task = task
        self._rate_hz = speech.rate_hz
        self._sound = speech.speak(utterances, voice, task.speed)
        self._file = begin_file(task.format, speech.rate_hz)
        self._samples = 0
        self._ended = False

    def __iter__(self) -> Iterator[TaskPiece]:
        return self

    def __next__(self) -> TaskPiece:
        if self._ended:
            raise StopIteration
        return self._advance

    def _advance(self) -> Spoken | None:
        try:
            samples = next(self._sound)
        except StopIteration:
            self._ended = True
            return Spoken(self._task.stream_id, self._file.end(), 0.0)
        if samples is None:
            return None
        self._samples += samples.size
        if not np.isfinite(samples).all():
            raise ArithmeticError("the sound has samples that are not finite")
        if self._samples > _MOST_SOUND_S * self._rate_hz:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The sound of `input` is longer than {_MOST_SOUND_S} s: send less at a time.",
                param="input",
            )
        scaled = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
        data = self._file.add(scaled)
        return Spoken(self._task.stream_id, data, samples.size / self._rate_hz)
