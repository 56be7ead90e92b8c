"""The engine of models that read texts aloud."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_audio.utils import apply_quantization

from lmx.protocol.errors import ErrorCode, OperationError, RequestError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.speech import Speak
from lmx.protocol.messages.tasks import Task, TaskReply
from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.models.kind import speech_family
from lmx.protocol.models.voices import voice_files
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import ModelFacts, TaskPlan, wrong_kind
from lmx.worker.media.values import Media
from lmx.worker.mlx.device.cpu_convolutions import use_matrix_products
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.device.metal_memory import wire_weights
from lmx.worker.mlx.encoders.encoder import EncoderMemory
from lmx.worker.mlx.model.folder import read_folder
from lmx.worker.mlx.model.guard import forbid_checkpoint_code
from lmx.worker.mlx.model.load import read_weights
from lmx.worker.mlx.voices.speech import Speech, SpeechModel

_OPENAI: Final = frozenset({
    "alloy", "ash", "ballad", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse", "cedar",
})  # fmt: skip
"""OpenAI's own voices, which its clients name by default."""


def load_speaker(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load a voice, and say a word, so that a model that can't be served fails here. See
    ``EngineFactory``."""
    folder = Path(spec.model_path)
    advanced(LoadPhase.WEIGHTS, 0.0, "")
    use_matrix_products()
    forbid_checkpoint_code()
    checkpoint = read_folder(folder).checkpoint
    family = speech_family(checkpoint)
    voices = voice_files(folder, family or "")
    if family is not None and not voices:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} has no voices, which are files voices/NAME.safetensors: fetch the model "
            "again.",
        )
    speech = _load(folder, checkpoint, family, voices)
    read_weights(speech.model, advanced, folder, checkpoint, ModelKind.SPEECH)
    wire_weights(spec.wiring, spec.memory_limit_bytes)
    advanced(LoadPhase.WARMUP, None, "")
    speaker = MlxSpeaker(speech, tuple(voices))
    utterances = speech.read("Hello there.", speaker.default, 1.0)
    for _ in speech.speak(utterances, speaker.default, 1.0):
        advanced(LoadPhase.WARMUP, None, "")
    mx.clear_cache()
    facts = ModelFacts(context_tokens=4096, eos_token_ids=frozenset(), vocabulary_size=0)
    return Engine(facts, EncoderMemory(speech.model), tasks=speaker)


class MlxSpeaker:
    """A ``TaskEngine``. Each sentence is a piece."""

    def __init__(self, speech: SpeechModel, voices: Sequence[str]) -> None:
        """``voices`` are sorted; there is at least one."""
        self._speech = speech
        self._voices = voices
        self.default = speech.default if speech.default in voices else voices[0]

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        """Check the voice, and cut the text into sentences."""
        if not isinstance(task, Speak):
            raise wrong_kind(ModelKind.SPEECH)
        if task.speed != 1 and not self._speech.own_speed:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"`speed` is {task.speed:g}, and this model speaks at its own speed: leave it out.",
                param="speed",
            )
        voice = self._voice(task.voice)
        utterances = self._speech.read(task.text, voice, task.speed)
        if not utterances:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "`input` has nothing to say: it has no words.",
                param="input",
            )
        pieces = Speech(task, self._speech, utterances, voice)
        return TaskPlan(sum(map(self._speech.tokens, utterances)), pieces)

    def _voice(self, wanted: str | None) -> str:
        """Return the voice that a name means. One of OpenAI's own is the voice whose name ends so,
        else the default."""
        if wanted is None or wanted in self._voices:
            return wanted or self.default
        like = [name for name in self._voices if name.endswith(f"_{wanted}")]
        if like:
            return like[0]
        if wanted in _OPENAI:
            return self.default
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`voice` is {wanted[:40]!r}, and this model has {', '.join(self._voices[:20])}"
            f"{' and others' if len(self._voices) > 20 else ''}: name one of them "
            "(GET /v1/audio/voices).",
            param="voice",
        )


def _load(
    folder: Path, checkpoint: CheckpointConfig, family: str | None, voices: Mapping[str, Path]
) -> SpeechModel:
    """Raises :class:`OperationError` for a folder that holds no model of the families that lmx
    reads."""
    config = dict(checkpoint.whole)
    try:
        weights: dict[str, Any] = {}
        for file in sorted(folder.glob("*.safetensors")):
            content: Any = mx.load(str(file))
            weights |= content
        if not on_gpu():
            weights = {name: _computable(value) for name, value in weights.items()}
        match family:
            case "kokoro":
                from lmx.worker.mlx.voices.kokoro import KokoroVoice, make_kokoro

                model = make_kokoro(config)
                make: Any = KokoroVoice
            case "pocket_tts":
                from lmx.worker.mlx.voices.pocket import PocketVoice, make_pocket

                model = make_pocket(config, folder)
                make = PocketVoice
            case _:
                raise OperationError(
                    ErrorCode.MODEL_SOURCE_INVALID,
                    f"The type of this model is {checkpoint.model_type!r}, and lmx reads texts "
                    "aloud with Kokoro and Pocket TTS: take a folder of the type 'kokoro' or "
                    "'pocket_tts'.",
                )
        weights = model.sanitize(weights)
        apply_quantization(model, config, weights)
        model.load_weights(list(weights.items()))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} holds no {family} that can be loaded ({error}): fetch the model again.",
        ) from error
    model.eval()
    speech: SpeechModel = make(model, voices)
    return speech


def _computable(value: mx.array) -> mx.array:
    # On a CPU 16 bits are fifty times slower.
    return value.astype(mx.float32) if mx.issubdtype(value.dtype, mx.floating) else value
