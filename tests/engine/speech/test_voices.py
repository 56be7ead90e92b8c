"""Kokoro and Pocket TTS: tiny ones show what is computed and when; the real one is understood."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from lmx.protocol.errors import ErrorCode, OperationError, RequestError
from lmx.protocol.messages.speech import SoundFormat, Speak, Spoken, Transcript
from lmx.protocol.messages.tasks import Embed
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.states import ModelKind
from lmx.worker.engine.interfaces import Engine
from lmx.worker.engine.values import TaskPlan
from lmx.worker.mlx.device import cpu_convolutions
from lmx.worker.mlx.memory.estimate import estimate
from lmx.worker.mlx.voices.kokoro import KokoroVoice
from tests.engine.speech.test_transcription import loaded as loaded_whisper
from tests.engine.speech.test_transcription import text_of, transcribe
from tests.support.models.kokoro_models import obtain_kokoro
from tests.support.models.pocket_models import make_tiny_pocket
from tests.support.models.speech_samples import word_errors
from tests.support.models.whisper_models import obtain_whisper_tiny_en
from tests.support.rigs.engine_rig import task_engine

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)


loaded = partial(task_engine, kind=ModelKind.SPEECH)


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return loaded(make_tiny_pocket(tmp_path_factory.mktemp("pocket")))


def plan(engine: Engine, text: str, **fields: Any) -> TaskPlan:
    made = engine.tasks.plan(Speak(7, "r", 9.0, text, **{"format": SoundFormat.PCM, **fields}))
    assert isinstance(made, TaskPlan)
    return made


def speak(engine: Engine, text: str, **fields: Any) -> tuple[list[Spoken], int]:
    """Return the parts of the sound, and in how many steps they were made."""
    parts: list[Spoken] = []
    steps = 0
    for piece in plan(engine, text, **fields).pieces:
        part = None
        while part is None:
            part = piece()
            steps += 1
        assert isinstance(part, Spoken)
        parts.append(part)
    return parts, steps


TEXT = "This is the first sentence. And here is the second one."


def test_voices_by_name_and_by_what_openai_calls_them(pocket: Engine) -> None:
    first, _ = speak(pocket, TEXT)
    for same in ("alba", "marin"):
        assert speak(pocket, TEXT, voice=same)[0] == first, same
    assert speak(pocket, TEXT, voice="echo")[0] != first
    with pytest.raises(RequestError, match="alba, am_echo") as caught:
        plan(pocket, TEXT, voice="../../etc/passwd")
    assert caught.value.param == "voice"
    with pytest.raises(RequestError, match="nothing to say") as caught:
        plan(pocket, " ... !?")
    assert caught.value.param == "input"
    with pytest.raises(RequestError, match="reads texts aloud"):
        pocket.tasks.plan(Embed(1, "r", 9.0, ("a",)))


def test_a_text_becomes_frames_between_which_others_are_heard(pocket: Engine) -> None:
    parts, steps = speak(pocket, TEXT)
    assert [bool(part.data) for part in parts] == [True, True, False]
    assert steps > len(parts) + 2, "a sentence is made in many steps"
    # A sentence that is given up in the middle leaves nothing behind for the next text.
    begun = iter(plan(pocket, "Something quite different, which nobody hears.").pieces)
    piece = next(begun)
    assert piece() is None and piece() is None
    assert speak(pocket, TEXT)[0] == parts
    with pytest.raises(RequestError, match="its own speed") as caught:
        plan(pocket, TEXT, speed=2.0)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VALUE


def test_a_long_word_has_the_time_that_its_characters_take(
    pocket: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: Any = pocket.tasks
    monkeypatch.setattr(tasks._speech.model, "eos_threshold", float("inf"))

    def longest_s(text: str) -> float:
        return sum(part.duration_s for part in speak(pocket, text)[0])

    assert longest_s("One two six ten.") == pytest.approx(6, abs=0.1)
    assert longest_s("1" * 12) > 6


def test_a_quantized_folder_is_read_as_mlx_audio_writes_it(tmp_path: Path) -> None:
    folder = make_tiny_pocket(tmp_path / "m")
    file = folder / "model.safetensors"
    weights: Any = mx.load(str(file))
    layer = "flow_lm.transformer.layers.0.linear1"
    packed = mx.quantize(weights.pop(f"{layer}.weight"), group_size=32, bits=8)
    for name, value in zip(("weight", "scales", "biases"), packed, strict=True):
        weights[f"{layer}.{name}"] = value
    mx.save_safetensors(str(file), weights)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 8}
    (folder / "config.json").write_text(json.dumps(config))
    parts, _ = speak(loaded(folder), TEXT)
    assert parts[0].data


def test_folders_that_lack_something_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_pocket(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    voices = folder / "voices"
    voices.rename(folder / "kept")
    with pytest.raises(OperationError, match="has no voices"):
        loaded(folder)
    (folder / "kept").rename(voices)
    wrong = {key: value for key, value in config.items() if key != "mimi"}
    (folder / "config.json").write_text(json.dumps({**wrong, "model_type": config["model_type"]}))
    with pytest.raises(OperationError, match="can be loaded") as caught:
        loaded(folder)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID
    (folder / "config.json").write_text(json.dumps({"model_type": "bark"}))
    (folder / "README.md").write_text("---\npipeline_tag: text-to-speech\n---\n")
    with pytest.raises(OperationError, match="Kokoro and Pocket TTS"):
        loaded(folder)


class _Vocoder:
    """Stands for Kokoro: convolutions one behind the other, one of which is evaluated at once."""

    sample_rate = 24_000
    vocab: Mapping[str, int] = {}

    def __call__(self, utterance: str, style: mx.array, speed: float) -> mx.array:
        sound = mx.random.normal((1, 100, 4)) + style.sum()
        for number in range(5):
            sound = mx.conv1d(sound, mx.ones((4, 3, 4)) / 12, padding=1)
            if number == 2:
                mx.eval(sound)
        return mx.conv_transpose1d(sound, mx.ones((1, 2, 4)), stride=2)[..., 0]


@needs_espeak
def test_a_sentence_of_kokoro_is_made_in_parts_and_can_be_given_up(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / "v"), {"voice": mx.ones((9, 1, 4))})
    voice = KokoroVoice(_Vocoder(), {"af_heart": tmp_path / "v.safetensors"})
    plain = (mx.eval, mx.conv1d, mx.conv_transpose1d)
    parts = list(voice.speak(["abc", "de"], "af_heart", 1.0))
    sounds = [part for part in parts if part is not None]
    assert [part is None for part in parts] == [*[True] * 6, False] * 2
    mx.random.seed(int.from_bytes(hashlib.sha256(b"abc").digest()[:4], "little"))
    whole = np.array(voice.model("abc", mx.ones((1, 4)), 1.0)).reshape(-1)
    assert np.array_equal(sounds[0], whole) and np.abs(whole).max() > 0
    # Whoever has left in the middle has changed nothing for the next one.
    left = voice.speak(["something else"], "af_heart", 1.0)
    assert next(left) is None and next(left) is None
    assert (mx.eval, mx.conv1d, mx.conv_transpose1d) == plain
    left.close()
    again = [part for part in voice.speak(["abc"], "af_heart", 1.0) if part is not None]
    assert np.array_equal(again[0], sounds[0])


def test_convolutions_are_those_of_mlx() -> None:
    mx.random.seed(0)
    x, w = mx.random.normal((2, 40, 6)), mx.random.normal((5, 3, 6))
    for padding, dilation in ((0, 2), (3, 3), (15, 15)):
        made = cpu_convolutions.conv1d(x, w, padding=padding, dilation=dilation)
        assert mx.allclose(made, mx.conv1d(x, w, padding=padding, dilation=dilation), atol=1e-4)
    transposed = mx.random.normal((5, 7, 6))
    for stride, padding, more in ((1, 0, 0), (3, 2, 0), (3, 2, 1), (10, 6, 0)):
        options: Any = {"stride": stride, "padding": padding, "output_padding": more}
        made = cpu_convolutions.conv_transpose1d(x, transposed, **options)
        assert mx.allclose(made, mx.conv_transpose1d(x, transposed, **options), atol=1e-4)


@pytest.mark.soak
@needs_espeak
def test_the_real_one_is_understood_and_takes_what_was_estimated() -> None:
    folder = obtain_kokoro()
    engine = loaded(folder)
    text = (
        "The little ship had left the harbour early in the morning. "
        "Nobody on board knew how long the journey would take, but everybody was happy."
    )
    parts, steps = speak(engine, text)
    assert steps > 100, "a sentence is made in many steps"
    samples = np.frombuffer(b"".join(part.data for part in parts), "<i2") / 32768
    assert 6 < len(samples) / 24_000 < 14
    assert len(parts) == 3 and all(part.data for part in parts[:2])
    assert speak(engine, "Good day.")[0] == speak(engine, "Good day.", voice="heart")[0]
    slow, fast = (
        sum(part.duration_s for part in speak(engine, "Good day.", speed=speed)[0])
        for speed in (0.5, 2.0)
    )
    assert slow > 2 * fast
    times = np.arange(0, len(samples) / 24_000, 1 / 16_000)
    heard = np.interp(times, np.arange(len(samples)) / 24_000, samples).astype(np.float32)
    whisper = loaded_whisper(obtain_whisper_tiny_en())
    transcript: list[Transcript] = transcribe(whisper, heard)
    assert word_errors(text_of(transcript), text) < 0.15, text_of(transcript)
    memory = estimate(folder, read_checkpoint_config(folder), ModelKind.SPEECH)
    work_bytes = memory.activations.token_bytes * memory.activations.chunk_tokens
    peak_bytes = engine.resident.peak_memory_bytes()
    assert peak_bytes < memory.weights_bytes + work_bytes + memory.buffers_bytes
