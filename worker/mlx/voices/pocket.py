"""Pocket TTS: text to sound, in frames of 80 ms."""

import hashlib
import importlib.util
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import mlx.core as mx
import numpy as np

from lmx.worker.text.sentences import sentences

for _name in ("mlx_audio.codec", "mlx_audio.codec.models"):
    # Else these would import every codec, and one of them scipy, which lmx does not install.
    _spec = importlib.util.find_spec(_name)
    assert _spec is not None and _spec.submodule_search_locations is not None
    _bare = sys.modules[_name] = ModuleType(_name)
    _bare.__path__ = list(_spec.submodule_search_locations)

from mlx_audio.tts.models.pocket_tts.pocket_tts import (  # noqa: E402
    Model,
    ModelConfig,
    prepare_text_prompt,
)

__all__ = ["Model", "ModelConfig", "PocketVoice", "make_pocket"]

_MOST_CHARS: Final = 200

_LETTERS_PER_S: Final = 4
_OTHERS_PER_S: Final = 2
"""How many letters, and digits and signs, are said in a second at least."""


class _Timed(str):
    """A text that the library breaks off after a second for each of the words that it is split
    into, and two more. So a number of many digits, or an address, must not be a single one."""

    def split(self, *_: Any) -> list[str]:
        most_s = sum(map(_most_s, super().split()))
        return [""] * int(most_s)


def _most_s(word: str) -> float:
    letters = sum(map(str.isalpha, word))
    return max(1.0, letters / _LETTERS_PER_S + (len(word) - letters) / _OTHERS_PER_S)


class PocketVoice:
    """A ``SpeechModel``. Its codec keeps the state of the sentence that is being said: so only one
    is said at a time, and the part of a sentence that was dropped leaves nothing behind."""

    own_speed = False
    default = "alba"

    def __init__(self, model: Any, voices: Mapping[str, Path]) -> None:
        self.model = model
        self._voices = voices
        self.rate_hz = int(model.sample_rate)

    def read(self, text: str, voice: str, speed: float) -> Sequence[str]:
        found = sentences(text, _MOST_CHARS)
        return [prepare_text_prompt(one)[0] for one in found if any(map(str.isalnum, one))]

    def tokens(self, utterance: str) -> int:
        return int(self.model.flow_lm.conditioner.prepare(utterance).tokens.shape[1])

    def speak(
        self, utterances: Sequence[str], voice: str, speed: float
    ) -> Generator[np.ndarray[Any, Any] | None]:
        model = self.model
        state = model.get_state_for_audio_prompt(self._voices[voice])
        prompt_frames = model._get_flow_cache_num_frames(state)
        for utterance in utterances:
            digest = hashlib.sha256(utterance.encode()).digest()
            mx.random.seed(int.from_bytes(digest[:4], "little"))
            model._slice_flow_cache(state, prompt_frames)
            frames_after_eos = prepare_text_prompt(utterance)[1] + 2
            frames = []
            for frame in model._generate_audio_stream_short_text(
                state, _Timed(utterance), frames_after_eos
            ):
                frames.append(np.array(frame.astype(mx.float32)))
                yield None
            yield np.concatenate(frames) if frames else np.zeros(0, np.float32)


def make_pocket(config: Mapping[str, Any], folder: Path) -> Any:
    """Return the model without its weights. Raises what its classes raise for what is no Pocket
    TTS."""
    parsed = ModelConfig.from_dict(dict(config) | {"model_path": str(folder)})
    if parsed.flow_lm is None or not Path(parsed.flow_lm.lookup_table.tokenizer_path).is_file():
        raise ValueError("its folder has no tokenizer")  # It would be fetched.
    return Model(parsed)
