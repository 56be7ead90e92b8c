"""The engine of transcription models."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.speech import Transcribe
from lmx.protocol.messages.tasks import Task, TaskReply
from lmx.protocol.states import LoadPhase, MediaKind, ModelKind
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import ModelFacts, TaskPlan, wrong_kind
from lmx.worker.media.values import Media, MediaNeeds, Sound
from lmx.worker.mlx.device.metal_memory import wire_weights
from lmx.worker.mlx.encoders.encoder import EncoderMemory
from lmx.worker.mlx.model.passes import note_pass
from lmx.worker.mlx.model.token_text import TokenTask, TokenTasks
from lmx.worker.mlx.speech.decoder import SpeechNetwork
from lmx.worker.mlx.speech.load import load_network
from lmx.worker.mlx.speech.rules import STAMPS_PER_SECOND
from lmx.worker.mlx.speech.transcription import Transcription
from lmx.worker.mlx.speech.vocabulary import ENGLISH, SpeechVocabulary, language_code

SAMPLE_RATE_HZ: Final = 16_000


def load_transcriber(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load a Whisper, and transcribe a second, so that a model that can't be served fails here.
    See ``EngineFactory``."""
    advanced(LoadPhase.WEIGHTS, 0.0, "")
    network, tokenizer = load_network(Path(spec.model_path), advanced)
    wire_weights(spec.wiring, spec.memory_limit_bytes)
    advanced(LoadPhase.WARMUP, None, "")
    _warm_up(network)
    dimensions = network.model.dims
    facts = ModelFacts(
        context_tokens=int(dimensions.n_text_ctx),
        eos_token_ids=frozenset({network.vocabulary.end}),
        vocabulary_size=int(dimensions.n_vocab),
        media=MediaNeeds(frozenset({MediaKind.AUDIO}), SAMPLE_RATE_HZ, {MediaKind.AUDIO: 1}),
    )
    token_tasks = TokenTasks(tokenizer, facts.vocabulary_size, facts.context_tokens)
    transcriber = MlxTranscriber(network, token_tasks)
    return Engine(facts, EncoderMemory(network.model), tasks=transcriber, transcriber=transcriber)


class MlxTranscriber:
    """A ``TaskEngine`` and a ``Transcriber``. Each
    window of a sound is a piece."""

    def __init__(self, network: SpeechNetwork, token_tasks: TokenTasks) -> None:
        self._network = network
        self._token_tasks = token_tasks

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskReply:
        if isinstance(task, TokenTask):
            return self._token_tasks.reply(task, media)
        raise wrong_kind(ModelKind.TRANSCRIPTION)

    def transcribe(self, task: Transcribe, sound: Sound) -> TaskPlan:
        """Check the language and tokenize the prompt; the windows follow from what is encoded."""
        vocabulary = self._network.vocabulary
        language = _language(vocabulary, task)
        prompt = vocabulary.encode(" " + task.prompt.strip()) if task.prompt.strip() else []
        # Transcripts have the length in hundredths: the router finds the tokens of the sound by it.
        sound_tokens = int(round(sound.duration_s, 2) * STAMPS_PER_SECOND)
        pieces = Transcription(self._network, task, sound, language, prompt)
        return TaskPlan(sound_tokens + len(prompt), pieces, sound.samples.nbytes)


def _language(vocabulary: SpeechVocabulary, task: Transcribe) -> str | None:
    """Return the code of the language that is spoken; None if the model is to find out."""
    if not vocabulary.languages and task.translate:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            "This model knows English only, so that it has nothing to translate: name a Whisper "
            "that knows other languages.",
            param="model",
        )
    code = None if task.language is None else language_code(task.language)
    if task.language is not None and code is None:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`language` is {task.language[:40]!r}, which is no language that Whisper knows: give "
            "a code like 'en', or leave it out.",
            param="language",
        )
    known = vocabulary.languages or (ENGLISH,)
    if code is not None and code not in known:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"`language` is {code!r}, and this model knows "
            f"{'English only' if not vocabulary.languages else 'other languages'}: name another "
            "model, or leave it out.",
            param="language",
        )
    return code if vocabulary.languages else ENGLISH


def _warm_up(network: SpeechNetwork) -> None:
    work = _first_tokens(network)
    for _ in work:
        note_pass()
    mx.clear_cache()


def _first_tokens(network: SpeechNetwork) -> Generator[None, None, None]:
    encoded = yield from network.encode(np.zeros(SAMPLE_RATE_HZ, np.float32))
    language = next(iter(network.vocabulary.languages), ENGLISH)
    begin = network.vocabulary.begin(language, translate=False)
    next(encoded.write(begin, (), 0.0, 0), None)
