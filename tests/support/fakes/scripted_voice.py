"""A voice that hums: for tests of everything around a model that reads texts aloud.

``engine="tests.support.fakes.scripted_voice:create"`` in a model's configuration, with
``kind: speech``. A sentence is a second of a tone; one with ``HANG`` in it never ends. Options
(``engine_options``): ``sentence_s`` is how long each takes, in ten parts.
"""

import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.speech import Speak
from lmx.protocol.messages.tasks import Task, TaskReply
from lmx.protocol.states import ModelKind
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import ModelFacts, TaskPlan, wrong_kind
from lmx.worker.media.values import Media
from lmx.worker.mlx.voices.speech import Speech
from lmx.worker.text.sentences import sentences
from tests.support.fakes.scripted_engine import ScriptedEngine, estimate

__all__ = ["create", "estimate"]

RATE_HZ = 24_000


class Hum:
    """A ``SpeechModel``."""

    model: Any = None
    rate_hz = RATE_HZ
    own_speed = True
    default = "hum"

    def __init__(self, sentence_s: float) -> None:
        self._sentence_s = sentence_s

    def read(self, text: str, voice: str, speed: float) -> Sequence[str]:
        return sentences(text, 160)

    def tokens(self, utterance: str) -> int:
        return len(utterance)

    def speak(
        self, utterances: Sequence[str], voice: str, speed: float
    ) -> Generator[np.ndarray[Any, Any] | None]:
        for utterance in utterances:
            while "HANG" in utterance:
                time.sleep(1)
            for _ in range(10):
                time.sleep(self._sentence_s / 10)
                yield None
            times = np.arange(int(RATE_HZ / speed)) / RATE_HZ
            yield np.sin(2 * np.pi * 440 * times).astype(np.float32) / 2


class _Tasks:
    def __init__(self, hum: Hum) -> None:
        self._hum = hum

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        if not isinstance(task, Speak):
            raise wrong_kind(ModelKind.SPEECH)
        found = self._hum.read(task.text, "hum", task.speed)
        return TaskPlan(len(task.text), Speech(task, self._hum, found, "hum"))


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Return the engine. See ``EngineFactory``."""
    facts = ModelFacts(context_tokens=4096, eos_token_ids=frozenset(), vocabulary_size=0)
    hum = Hum(spec.engine_options.get("sentence_s", 0.0))
    return Engine(facts, ScriptedEngine({}, {}).engine().resident, tasks=_Tasks(hum))
