"""A model's own processor, given decoded media in memory: never a path, never an address. What it
takes, and how much of a sound at once, is found out by trying."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, assert_never

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.prompt_utils import SINGLE_IMAGE_ONLY_MODELS
from mlx_vlm.utils import prepare_inputs, processor_video_sampling
from PIL import Image

from lmx.protocol.states import MediaKind
from lmx.worker.media.values import Media, MediaNeeds, Picture, Sound, Video

_OF_TEXT: Final = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "num_image_tokens"}
)
"""What a processor says of the tokens and not of the media."""

_TICKS_HZ: Final = 1000
"""The moments of frames are given to processors as numbers of frames at this rate."""


class Processed(NamedTuple):
    """What a processor makes of one picture, sound or video."""

    tokens: npt.NDArray[np.int32]
    """What stands for it in a prompt."""
    inputs: Mapping[str, Any]
    """What the model's encoder takes."""


def process(processor: Any, media: Media, marker: str, image_token: int | None) -> Processed:
    """Return what the model gets for one picture, sound or video.

    ``marker`` is what the chat template writes for it, and ``image_token`` the number of the
    placeholder, which a few processors need. Prompt thread. Raises ``ValueError`` and what
    else a processor raises for something that it can't take.
    """
    # The device is the engine thread's; this is nothing but converting.
    with mx.stream(mx.cpu):
        made = prepare_inputs(
            processor,
            prompts=marker,
            image_token_index=image_token,
            add_special_tokens=False,
            **_arguments(media),
        )
        tokens = np.array(made["input_ids"]).reshape(-1).astype(np.int32)
        inputs = {
            name: _to_numpy(value)
            for name, value in made.items()
            if name not in _OF_TEXT and value is not None
        }
    return Processed(tokens, inputs)


def kind_of(media: Media) -> MediaKind:
    """Return the kind of a decoded part."""
    match media:
        case Picture():
            return MediaKind.IMAGE
        case Sound():
            return MediaKind.AUDIO
        case Video():
            return MediaKind.VIDEO
        case _:
            assert_never(media)


def _arguments(media: Media) -> dict[str, Any]:
    match media:
        case Picture():
            return {"images": [Image.fromarray(media.pixels)]}
        case Sound():
            return {"audio": [media.samples]}
        case Video():
            metadata = {
                "total_num_frames": max(1, round(media.duration_s * _TICKS_HZ)),
                "fps": float(_TICKS_HZ),
                "frames_indices": [round(time_s * _TICKS_HZ) for time_s in media.times_s],
                "height": media.frames.shape[1],
                "width": media.frames.shape[2],
                "duration": media.duration_s,
            }
            frames = np.ascontiguousarray(media.frames.transpose(0, 3, 1, 2))
            return {"videos": [frames], "video_metadata": [metadata]}
        case _:
            assert_never(media)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, mx.array):
        if value.dtype == mx.bfloat16:
            value = value.astype(mx.float32)
        return np.array(value)
    if isinstance(value, list | tuple):
        return [_to_numpy(part) for part in value]
    return value


def to_mlx(value: Any) -> Any:
    """Return an input with MLX's arrays. Engine thread."""
    if isinstance(value, np.ndarray):
        return mx.array(value)
    if isinstance(value, list):
        return [to_mlx(part) for part in value]
    return value


_FIRST_S: Final = 32.0
_END_S: Final = 0.1
"""A processor that sees a change of this much of the end takes all of a sound. It may leave out
less, where that fills no window of its features."""
_EXACT_S: Final = 0.01

Process = Callable[[Sound], Processed]


class AudioLimits:
    """Knows how much of a sound one processor takes.

    What takes all of a sound takes all of shorter ones. So the processor is tried again only with a
    sound that is longer than all before.
    """

    def __init__(self) -> None:
        self._whole_s = 0.0
        """A sound of this length is taken as a whole."""
        self.most_s: float | None = None
        """What comes after this much of a sound is left out. None: nothing was so far."""

    def windows(self, sound: Sound, process: Process) -> Sequence[Sound]:
        """Return a sound in parts of one length, each of which ``process`` takes as a whole: one,
        if it takes all of it at once."""
        # Most take all, and each trial processes the sound again: so the whole one is tried first.
        if (
            self.most_s is None
            and self._whole_s < sound.duration_s
            and _trial(sound, process)(sound.duration_s - _END_S)
        ):
            self._whole_s = sound.duration_s
        while self.most_s is None and self._whole_s < sound.duration_s:
            self._try(sound, process)
        most_s = self.most_s
        if most_s is None or sound.duration_s <= most_s:
            return [sound]
        parts = np.array_split(sound.samples, math.ceil(sound.duration_s / most_s))
        return [Sound(part, sound.rate_hz) for part in parts]

    def _try(self, sound: Sound, process: Process) -> None:
        """Try whether the processor takes more than it is known to take."""
        end_s = min(sound.duration_s, max(_FIRST_S, 2 * self._whole_s))
        begun = Sound(sound.samples[: round(end_s * sound.rate_hz)], sound.rate_hz)
        sees = _trial(begun, process)
        if sees(end_s - _END_S):
            self._whole_s = end_s
            return
        seen_s, unseen_s = 0.0, end_s
        while unseen_s - seen_s > _EXACT_S:
            middle_s = (seen_s + unseen_s) / 2
            seen_s, unseen_s = (middle_s, unseen_s) if sees(middle_s) else (seen_s, middle_s)
        self.most_s = max(_END_S, round(unseen_s / _END_S) * _END_S)


def _trial(sound: Sound, process: Process) -> Callable[[float], bool]:
    """Return a function that says whether a processor sees a change of all that comes after a
    time."""
    processed = process(sound)
    return lambda begin_s: not _same(process(_changed(sound, begin_s)), processed)


def _changed(sound: Sound, begin_s: float) -> Sound:
    samples = np.array(sound.samples)
    rest = samples[max(0, int(begin_s * sound.rate_hz)) :]
    rest += np.random.default_rng(0).normal(0, 0.1, len(rest)).astype(np.float32)
    return Sound(samples, sound.rate_hz)


def _same(one: Processed, other: Processed) -> bool:
    return np.array_equal(one.tokens, other.tokens) and all(
        _equal(value, other.inputs.get(name)) for name, value in one.inputs.items()
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return np.array_equal(np.asarray(one), np.asarray(other))


_ARGUMENTS: Final = {
    MediaKind.IMAGE: ("images",),
    MediaKind.AUDIO: ("audio", "audios"),
    MediaKind.VIDEO: ("videos",),
}
"""By which names processors take them."""

_SAMPLE_RATE_HZ: Final = 16_000
"""That of a processor which doesn't say it."""


def media_needs(processor: Any, model_type: str, kinds: frozenset[MediaKind]) -> MediaNeeds | None:
    """Return what a model takes of the ``kinds`` that it has weights for. None: nothing, because
    its processor takes none of them."""
    taken = frozenset(kind for kind in kinds if _takes(processor, kind))
    if not taken:
        return None
    hears = MediaKind.AUDIO in taken
    return MediaNeeds(
        taken,
        sample_rate_hz=_sample_rate_hz(processor) if hears else None,
        max_items=_max_items(processor, model_type, taken),
        max_frames=_max_frames(processor) if MediaKind.VIDEO in taken else None,
        audio_in_video=hears and MediaKind.VIDEO in taken,
    )


def _takes(processor: Any, kind: MediaKind) -> bool:
    if kind is MediaKind.AUDIO and getattr(processor, "feature_extractor", processor) is None:
        return False
    parameters = inspect.signature(getattr(processor, "process", processor)).parameters
    return any(name in parameters for name in _ARGUMENTS[kind])


def _sample_rate_hz(processor: Any) -> int:
    extractor = getattr(processor, "feature_extractor", None)
    return int(getattr(extractor, "sampling_rate", _SAMPLE_RATE_HZ))


def _max_items(
    processor: Any, model_type: str, taken: frozenset[MediaKind]
) -> dict[MediaKind, int]:
    found = {}
    if MediaKind.IMAGE in taken and model_type in SINGLE_IMAGE_ONLY_MODELS:
        found[MediaKind.IMAGE] = 1
    if MediaKind.AUDIO in taken and not getattr(processor, "supports_multiple_audio", False):
        found[MediaKind.AUDIO] = 1
    return found


def _max_frames(processor: Any) -> int | None:
    most: int | None = processor_video_sampling(processor).max_frames
    return most
