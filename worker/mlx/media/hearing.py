"""How much of a sound a model's processor takes at once. Some leave out the rest without a word, so
that it is found out by trying. Prompt thread only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from lmx.worker.media.values import Sound
from lmx.worker.mlx.media.processor import Processed

_FIRST_S: Final = 32.0
_END_S: Final = 0.1
"""A processor that sees a change of so much of the end takes all of a sound. It may leave out less,
where that fills no window of its features."""
_EXACT_S: Final = 0.01

Process = Callable[[Sound], Processed]


class Hearing:
    """Knows how much of a sound one processor takes.

    What takes all of a sound takes all of shorter ones. So the processor is tried again only with a
    sound that is longer than all before.
    """

    def __init__(self) -> None:
        self._whole_s = 0.0
        """A sound of this length is taken as a whole."""
        self.most_s: float | None = None
        """What comes after so much of a sound is left out. None: nothing was so far."""

    def windows(self, sound: Sound, process: Process) -> Sequence[Sound]:
        """Return a sound in parts of one length, each of which ``process`` takes as a whole: one,
        if it takes all of it at once."""
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
        processed = process(begun)

        def sees(begin_s: float) -> bool:
            """Return whether the processor sees a change of all that comes after ``begin_s``."""
            return not _same(process(_changed(begun, begin_s)), processed)

        if sees(max(0.0, end_s - _END_S)):
            self._whole_s = end_s
            return
        seen_s, unseen_s = 0.0, end_s
        while unseen_s - seen_s > _EXACT_S:
            middle_s = (seen_s + unseen_s) / 2
            seen_s, unseen_s = (middle_s, unseen_s) if sees(middle_s) else (seen_s, middle_s)
        self.most_s = max(_END_S, round(unseen_s / _END_S) * _END_S)


def _changed(sound: Sound, begin_s: float) -> Sound:
    samples = np.array(sound.samples)
    rest = samples[int(begin_s * sound.rate_hz) :]
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
