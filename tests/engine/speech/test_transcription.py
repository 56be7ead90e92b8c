"""Whisper: real ones write down what is said; a tiny one shows what is computed and when."""

import wave
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.speech import SpokenSegment, Transcribe, Transcript
from lmx.protocol.messages.tasks import Embed, Tokenize, Tokenized
from lmx.protocol.states import ModelKind
from lmx.router.rendering.transcripts import TranscriptEvents, complete_transcript
from lmx.worker.engine.interfaces import Engine
from lmx.worker.engine.values import TaskPiece
from lmx.worker.media.values import Sound
from lmx.worker.mlx.speech import transcription
from lmx.worker.mlx.speech.decoder import EncodedWindow
from lmx.worker.mlx.speech.rules import Attempt
from tests.support.models.speech_samples import espeak, word_errors
from tests.support.models.whisper_models import (
    CLIP_TEXT,
    make_tiny_whisper,
    obtain_clip,
    obtain_whisper_base,
    obtain_whisper_tiny_en,
)
from tests.support.rigs.engine_rig import task_engine

RATE_HZ: Final = 16_000


loaded = partial(task_engine, kind=ModelKind.TRANSCRIPTION)


@pytest.fixture(scope="module")
def tiny_en() -> Engine:
    return loaded(obtain_whisper_tiny_en())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return loaded(make_tiny_whisper(tmp_path_factory.mktemp("whisper")))


def read_wav(path: Path) -> np.ndarray[Any, Any]:
    """Return the samples of a WAV file of one channel, at 16 kHz."""
    with wave.open(str(path)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    times = np.arange(0, len(samples) / rate, 1 / RATE_HZ)
    return np.interp(times, np.arange(len(samples)) / rate, samples).astype(np.float32)


def noise(seconds: float, seed: int = 1) -> np.ndarray[Any, Any]:
    samples = np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE_HZ))
    return samples.astype(np.float32)


def pieces(engine: Engine, samples: Any, **fields: Any) -> Iterator[TaskPiece]:
    assert engine.transcriber is not None
    task = Transcribe(7, "r", 9.0, (), **fields)
    return iter(engine.transcriber.transcribe(task, Sound(samples, RATE_HZ)).pieces)


def finish(piece: TaskPiece) -> Transcript:
    while (part := piece()) is None:
        pass
    assert isinstance(part, Transcript)
    return part


def transcribe(engine: Engine, samples: Any, **fields: Any) -> list[Transcript]:
    return [finish(piece) for piece in pieces(engine, samples, **fields)]


def segments(parts: list[Transcript]) -> list[SpokenSegment]:
    return [segment for part in parts for segment in part.segments]


def text_of(parts: list[Transcript]) -> str:
    return "".join(segment.text for segment in segments(parts)).strip()


def test_a_window_that_is_filled_behind_a_full_prompt_ends_where_the_context_does(
    tiny: Engine,
) -> None:
    """As OpenAI's Whisper ends it: there are no positions for more."""
    transcriber: Any = tiny.transcriber
    network: Any = transcriber._network
    context, half = network.model.dims.n_text_ctx, network.model.dims.n_text_ctx // 2
    begin, written = (1, 2, 3), []
    for before in (0, half - 1):
        heard = _returned(network.encode(noise(30)))
        attempt = _returned(heard.write(begin, [5] * before, 0.01, seed=1))
        written.append(len(attempt.tokens))
    # The last token needs no position: nothing is drawn behind it.
    assert written == [half, context + 1 - (1 + (half - 1) + len(begin))]


def _returned(generator: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


@pytest.mark.long
def test_a_real_clip_is_written_down_with_the_times_of_its_words(tiny_en: Engine) -> None:
    parts = transcribe(tiny_en, read_wav(obtain_clip()), words=True)
    assert word_errors(text_of(parts), CLIP_TEXT) == 0
    assert {(part.language, part.duration_s, part.heard_s) for part in parts} == {
        ("english", 9.96, 9.96)
    }
    spoken = segments(parts)
    words = [word for segment in spoken for word in segment.words]
    assert "".join(word.text for word in words).strip() == text_of(parts)
    times_s = [time_s for word in words for time_s in (word.start_s, word.end_s)]
    assert times_s == sorted(times_s)
    # By ear: the man says "failed" for the first time after 2.2 s, and "better" at the end.
    at = {word.text.strip(): word.start_s for word in words}
    assert at["failed."] == pytest.approx(2.2, abs=0.3)
    assert at["better."] == pytest.approx(8.4, abs=0.3)
    assert all(one.temperature == 0 and one.avg_logprob > -1 for one in spoken)
    assert all(0 < one.no_speech_prob < 0.6 < one.compression_ratio < 2.4 for one in spoken)


@pytest.mark.long
def test_long_speech_is_heard_in_windows_that_know_what_was_said(tiny_en: Engine) -> None:
    text = (
        "The museum opens at nine in the morning. Tickets for children are free on Sunday. "
        "Please leave large bags at the entrance. The garden is behind the main building. "
        "You can buy coffee and cake on the second floor. The last train leaves at midnight. "
        "Our guide will show you the old library. "
    )
    samples = read_wav(espeak(text))
    assert samples.size > 20 * RATE_HZ
    # And more, behind a pause over more than a window, which is passed over.
    more = "Please leave large bags at the entrance. The garden is behind the main building. "
    pause = np.zeros(31 * RATE_HZ, np.float32)
    parts = transcribe(tiny_en, np.concatenate([samples, pause, read_wav(espeak(more))]))
    spoken = segments(parts)
    assert word_errors(text_of(parts), text + more) < 0.2
    assert len(parts) == 2
    begun_s = parts[1].segments[0].start_s
    assert begun_s == pytest.approx((samples.size + pause.size) / RATE_HZ, abs=1)
    times_s = [time_s for one in spoken for time_s in (one.start_s, one.end_s)]
    assert times_s == sorted(times_s)
    assert parts[-1].heard_s == parts[-1].duration_s >= times_s[-1]


@pytest.mark.conformance  # A larger model, whose file has to be converted first.
def test_german_is_distinguished_from_english_and_translated() -> None:
    engine = loaded(obtain_whisper_base())
    text = "Guten Morgen. Ich möchte zwei Flaschen Wasser und ein Brot kaufen."
    samples = read_wav(espeak(text, voice="de", words_per_minute=130))
    parts = transcribe(engine, samples, translate=True)
    assert parts[0].language == "german", "it is what is spoken"
    assert "Good morning" in text_of(parts)
    assert "water" in text_of(parts)


def test_a_prompt_is_what_was_said_before(tiny: Engine) -> None:
    samples = noise(3)
    plain, led = (
        transcribe(tiny, samples, temperature=0.5, prompt=prompt) for prompt in ("", "A letter.")
    )
    assert segments(plain)[0].avg_logprob != segments(led)[0].avg_logprob


def test_a_sound_without_a_prompt_has_no_tokens_of_text(tiny: Engine) -> None:
    assert tiny.transcriber is not None
    for count in (9281, 9282, 9600):
        sound = Sound(np.zeros(count, np.float32), RATE_HZ)
        plan = tiny.transcriber.transcribe(Transcribe(7, "r", 9.0, ()), sound)
        (part,) = map(finish, plan.pieces)
        whole = complete_transcript([part], plan.prompt_tokens)
        events = TranscriptEvents().done(whole)
        assert b'"text_tokens":0' in events, count


def test_in_silence_nobody_speaks(tiny_en: Engine) -> None:
    for samples in (np.zeros(70 * RATE_HZ, np.float32), noise(5) * 0.01):
        parts = transcribe(tiny_en, samples)
        assert text_of(parts) == ""
        assert parts[-1].heard_s == parts[-1].duration_s


def test_the_language_is_that_of_a_window_in_which_somebody_speaks(
    tiny: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(("en", "de", "fr"))
    silent = iter((True, False, True, False))
    monkeypatch.setattr(EncodedWindow, "likeliest_language", lambda _: next(found))
    monkeypatch.setattr(transcription, "is_silence", lambda _: next(silent))
    monkeypatch.setattr(transcription, "is_poor", lambda _: False)
    todo = pieces(tiny, noise(150), temperature=0.5)
    assert [finish(next(todo)).language for _ in range(4)] == ["", "german", "german", "german"]


def test_times_end_with_the_sound(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model may write stamps in the silence that fills up the last window."""
    transcriber: Any = tiny.transcriber
    stamp = transcriber._network.vocabulary.stamp_begin
    tokens = (stamp + 25, 5, stamp + 100, stamp + 100, 6, stamp + 300)

    def write(*_: Any) -> Generator[None, None, Attempt]:
        yield
        return Attempt(tokens, "two words", 0.0, -0.1, 0.0)

    monkeypatch.setattr(EncodedWindow, "write", write)
    (part,) = transcribe(tiny, noise(3), language="en")
    assert [(one.start_s, one.end_s) for one in part.segments] == [(0.5, 2.0), (2.0, 3.0)]


def test_a_window_is_done_in_parts_and_the_rest_is_done_on_demand(tiny: Engine) -> None:
    todo = pieces(tiny, noise(70), temperature=0.5)
    piece = next(todo)
    calls = 1
    while (part := piece()) is None:
        calls += 1
    assert calls > 3, "layers and tokens are parts of their own"
    assert isinstance(part, Transcript)
    assert 0 < part.heard_s <= 30
    following = finish(next(todo))
    assert part.heard_s < following.heard_s <= part.heard_s + 30


def test_the_same_sound_gives_the_same_text_also_by_chance(tiny: Engine) -> None:
    samples = noise(8)
    first, second = (transcribe(tiny, samples, temperature=0.9) for _ in range(2))
    assert first == second
    other = transcribe(tiny, noise(8, seed=2), temperature=0.9)
    assert [one.tokens for one in segments(first)] != [one.tokens for one in segments(other)]


@pytest.mark.long
def test_two_sounds_in_turns_give_what_each_gives_alone(tiny: Engine) -> None:
    sounds = noise(32, seed=3), noise(32, seed=4)
    alone = [transcribe(tiny, samples, temperature=0.5, words=True) for samples in sounds]
    mixed: list[list[Transcript]] = [[], []]
    todo = [pieces(tiny, samples, temperature=0.5, words=True) for samples in sounds]
    under_way = True
    while under_way:
        turns = [_take_turn(each, into) for each, into in zip(todo, mixed, strict=True)]
        under_way = any(turns)
    assert mixed == alone


def _take_turn(todo: Iterator[TaskPiece], into: list[Transcript]) -> bool:
    piece = next(todo, None)
    if piece is not None:
        into.append(finish(piece))
    return piece is not None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"language": "klingon"}, "language", ErrorCode.INVALID_VALUE),
        ({"language": "ja"}, "language", ErrorCode.UNSUPPORTED_VALUE),
    ],
)
def test_a_language_that_there_is_not_is_refused_by_name(
    tiny: Engine, fields: dict[str, Any], param: str, code: ErrorCode
) -> None:
    with pytest.raises(RequestError) as caught:
        pieces(tiny, noise(1), **fields)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_languages_are_named_as_people_name_them(tiny: Engine) -> None:
    for name in ("de", "German", "DE", "de-AT", "de_CH"):
        part = finish(next(pieces(tiny, noise(1), temperature=0.5, language=name)))
        assert part.language == "german"


def test_a_model_that_hears_english_only_translates_nothing(tmp_path: Path) -> None:
    engine = loaded(make_tiny_whisper(tmp_path / "m", multilingual=False))
    assert transcribe(engine, noise(1), language="english")[0].language == "english"
    for fields, param in (({"translate": True}, "model"), ({"language": "de"}, "language")):
        with pytest.raises(RequestError, match="English only") as caught:
            pieces(engine, noise(1), **fields)
        assert caught.value.param == param


def test_other_tasks_are_for_other_models(tiny: Engine) -> None:
    with pytest.raises(RequestError, match="transcribes speech") as caught:
        tiny.tasks.plan(Embed(7, "r", 9.0, texts=("a",)))
    assert caught.value.param == "model"
    reply = tiny.tasks.plan(Tokenize(7, "r", 9.0, text="abc", add_special_tokens=False))
    assert isinstance(reply, Tokenized)
    assert len(reply.tokens) == 3


def test_what_is_no_whole_whisper_is_refused_in_words(tmp_path: Path) -> None:
    folder = make_tiny_whisper(tmp_path / "m")
    (folder / "tokenizer.json").rename(folder / "tokenizer.gone")
    with pytest.raises(LmxError, match=r"no tokenizer\.json"):
        loaded(folder)
    (folder / "tokenizer.gone").rename(folder / "tokenizer.json")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"d_model": 32', '"d_model": 64'))
    with pytest.raises(LmxError, match="not those of the Whisper"):
        loaded(folder)


def test_what_is_computed_is_released(tiny: Engine) -> None:
    transcribe(tiny, noise(5), temperature=0.5)
    tiny.resident.rest()
    before = mx.get_active_memory()
    for _ in range(2):
        transcribe(tiny, noise(5), temperature=0.5)
    tiny.resident.rest()
    assert mx.get_active_memory() <= before + 1_000_000
