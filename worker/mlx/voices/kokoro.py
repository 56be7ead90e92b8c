"""Kokoro: phonemes to sound, a sentence at once, and a convolution at a time."""

import hashlib
import subprocess
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_audio.tts.models.kokoro.kokoro import Model, ModelConfig

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.models.voices import KOKORO_LANGUAGES
from lmx.worker.mlx.voices.phonemes import phonemes, require_espeak
from lmx.worker.text.sentences import sentences

_MOST_CHARS: Final = 160
_MOST_PHONEMES: Final = 200
"""A sound of 14 s. The model takes 510, but says the last ones of so many badly."""


class KokoroVoice:
    """A ``SpeechModel``."""

    own_speed = True
    default = "af_heart"

    def __init__(self, model: Any, voices: Mapping[str, Path]) -> None:
        """Raises :class:`lmx.protocol.errors.OperationError` if espeak-ng is not installed."""
        self._espeak = require_espeak()
        self.model = model
        self._voices = voices
        self._styles: dict[str, mx.array] = {}
        self.rate_hz = int(model.sample_rate)

    def read(self, text: str, voice: str, speed: float) -> Sequence[str]:
        symbols: Mapping[str, int] = self.model.vocab
        try:
            found = phonemes(
                self._espeak, sentences(text, _MOST_CHARS), KOKORO_LANGUAGES[voice[0]], symbols
            )
        except subprocess.SubprocessError as error:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "espeak-ng made no phonemes of `input`: send plain text.",
                param="input",
            ) from error
        # What is said slowly takes as much more memory.
        most = int(_MOST_PHONEMES * min(1.0, speed))
        return [part for sentence in found for part in _parts(sentence, most)]

    def tokens(self, utterance: str) -> int:
        return len(utterance)

    def speak(
        self, utterances: Sequence[str], voice: str, speed: float
    ) -> Generator[np.ndarray[Any, Any] | None]:
        for utterance in utterances:
            style = self._style(voice)
            # The same text gives the same sound: its noise is drawn.
            digest = hashlib.sha256(utterance.encode()).digest()
            mx.random.seed(int.from_bytes(digest[:4], "little"))
            with _recorded() as parts:
                sound = self.model(utterance, style[min(len(utterance), len(style)) - 1], speed)
            while parts:
                mx.eval(parts.popleft())
                yield None
            yield np.array(sound.astype(mx.float32)).reshape(-1)

    def _style(self, voice: str) -> mx.array:
        if voice not in self._styles:
            content: Any = mx.load(str(self._voices[voice]))
            self._styles[voice] = content["voice"].astype(mx.float32)
        return self._styles[voice]


_CONVOLUTIONS: Final = ("conv1d", "conv_transpose1d")


@contextmanager
def _recorded() -> Iterator[deque[mx.array]]:
    """Let a model's class compute nothing within the block but what it must know at once, and
    return the results of its convolutions, in their order, to be computed after the block.

    They take nearly all of the time: on a CPU seconds for each second of sound. mlx computes
    nothing before it is evaluated, so it is enough to leave out what the class evaluates itself.
    """
    parts: deque[mx.array] = deque()
    engine = threading.get_ident()
    plain = {name: getattr(mx, name) for name in ("eval", *_CONVOLUTIONS)}

    def evaluate(*values: Any) -> None:
        if threading.get_ident() != engine:
            plain["eval"](*values)

    def convolve(name: str, *args: Any, **kwargs: Any) -> mx.array:
        made: mx.array = plain[name](*args, **kwargs)
        if threading.get_ident() == engine:
            parts.append(made)
        return made

    mx.eval = evaluate
    for name in _CONVOLUTIONS:
        setattr(mx, name, partial(convolve, name))
    try:
        yield parts
    finally:
        for name, function in plain.items():
            setattr(mx, name, function)


def make_kokoro(config: Mapping[str, Any]) -> Any:
    """Return the model without its weights. Raises what its classes raise for what is no Kokoro."""
    return Model(ModelConfig.from_dict(dict(config)))


def _parts(sentence: str, most: int) -> list[str]:
    """Return the phonemes in parts that the model can say; none if there is nothing to say."""
    parts: list[str] = []
    while len(sentence) > most:
        at = sentence.rfind(" ", 1, most) + 1 or most
        parts.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [part for part in (*parts, sentence) if any(map(str.isalpha, part))]
