"""Rows with pictures in the engine: what is looked at, when, and what of it is used again."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.media.spans import MediaSpans
from lmx.worker.mlx.model.batch_slots import join
from lmx.worker.mlx.model.forward import Forward, cache_states
from lmx.worker.mlx.model.library import open_checkpoint
from tests.support.models.media_models import make_media_model
from tests.support.models.vlm_models import make_vlm_model
from tests.support.rigs.conformance import without_processors
from tests.support.rigs.engine_rig import spec_of
from tests.support.rigs.media_check import picture
from tests.support.rigs.seeing_rig import Seeing

WHAT = "What is in the image?"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    folder: Path = make_media_model(tmp_path_factory.mktemp("models") / "qwen3_vl", "qwen3_vl")
    return Seeing(spec_of(folder, prefix_cache=PrefixCacheSpec(1 << 28, None, 0)))


@pytest.fixture
def engine(loaded: Seeing) -> Iterator[Seeing]:
    yield loaded
    loaded.clear()


def test_a_picture_behind_the_cached_part_is_looked_at_once(engine: Seeing) -> None:
    """The text before it differs, so that nothing of it is cached but what was seen."""
    before = engine.encoded
    one = engine.ask(engine.prompt(WHAT, picture(10)), 2, cache_salt="x")
    engine.finish()
    other = engine.prompt("Look! " + WHAT, picture(10))
    assert other.media is not None
    two = engine.ask(other, 2, cache_salt="x")
    engine.finish()
    assert engine.encoded == before + 1
    assert not {one, two} & engine.failed.keys()


def test_others_do_not_learn_what_was_seen(engine: Seeing) -> None:
    before = engine.encoded
    for salt in ("one", "other"):
        row = engine.ask(engine.prompt(WHAT, picture(11)), 2, cache_salt=salt)
        engine.finish()
        assert engine.started[row].cached_tokens == 0
    assert engine.encoded == before + 2


def test_only_the_beginning_before_another_picture_is_shared(engine: Seeing) -> None:
    before = "Two pictures of the same size:"
    first = engine.prompt(WHAT, picture(12, 128, 128), before=before)
    engine.ask(first, 2)
    engine.finish()
    other = engine.ask(engine.prompt(WHAT, picture(13, 128, 128), before=before), 2)
    engine.finish()
    assert isinstance(first.media, MediaSpans)
    assert engine.started[other].cached_tokens == first.media.spans[0].start


def test_encoding_takes_steps_of_its_own(engine: Seeing) -> None:
    talking = engine.admit("Tell me a story.", max_tokens=40)
    engine.until(lambda: engine.tokens[talking])
    prompt = engine.prompt(WHAT, picture(14), picture(15))
    assert prompt.media is not None
    seeing = engine.ask(prompt, 2)
    steps, encoded = 0, 0
    while seeing not in engine.started:
        output = engine.step()
        if output.media_tokens:
            steps, encoded = steps + 1, encoded + output.media_tokens
            assert not output.tokens and not output.prefill_tokens
            # The other row is not kept waiting by two parts in a row.
            assert engine.step().tokens
    # There is no time at all: each picture takes a step for each block of the eyes, and one more.
    assert steps >= 6
    assert encoded == prompt.media.image_tokens
    engine.finish()


def test_what_is_read_was_encoded_whenever_the_length_of_chunks_changes(
    engine: Seeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time during which somebody else is expected ends between the two."""
    generator: Any = engine.generator
    rows = generator._rows
    prompt = engine.prompt(WHAT, picture(19), before="A text that takes more than one chunk.")
    alone = engine.ask(prompt, 6, cache_salt="alone")
    engine.finish()
    expected = itertools.cycle((True, False))
    monkeypatch.setattr(rows, "_yields", lambda _: next(expected))
    monkeypatch.setattr(rows._pace, "chunk", lambda *_, yields, **__: 8 if yields else 1000)
    row = engine.ask(prompt, 6, cache_salt="changes")
    engine.finish()
    assert row not in engine.failed and engine.tokens[row] == engine.tokens[alone]


def test_what_was_not_encoded_is_not_passed_over(engine: Seeing) -> None:
    prompt = engine.prompt(WHAT, picture(20))
    row = SequenceRequest(0, prompt.tokens, 1, SequenceSampling(0.0), media=prompt.media)
    generator: Any = engine.generator
    forward = generator._rows._forward
    with pytest.raises(RuntimeError, match="encoded"):
        PromptPrefill(forward, row, forward.new_cache(), 0).advance(1000, ())


def test_answers_to_one_prompt_share_what_was_seen(engine: Seeing) -> None:
    before = engine.encoded
    prompt = engine.prompt(WHAT, picture(16))
    rows = [engine.ask(prompt) for _ in range(3)]
    engine.finish()
    assert engine.encoded == before + 1
    assert len({tuple(engine.tokens[row]) for row in rows}) == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_row_that_was_preempted_answers_as_it_would_have(engine: Seeing, is_kept: bool) -> None:
    """Its picture was released when it had been seen, and is encoded again; of what was computed
    all is found, or nothing. Two answers share the picture."""
    more: dict[str, Any] = {"sampling": SequenceSampling(1.0, seed=3)}
    prompt = engine.prompt(WHAT, picture(17))
    alone = engine.ask(prompt, 10, cache_salt="alone", **more)
    engine.finish()
    salts = ("preempted", "preempted" if is_kept else "elsewhere")
    rows = [engine.ask(prompt, 10, cache_salt=salts[0], **more) for _ in range(2)]
    while any(len(engine.tokens[row]) < 4 for row in rows):
        engine.step()
    assert isinstance(prompt.media, MediaSpans) and prompt.media.size_bytes > 0
    prompt.media.release()
    assert prompt.media.size_bytes == 0
    engine.flush()
    made = [engine.generator.preempt(row) for row in rows]
    for row in rows:
        del engine.live[row]
    again = engine.prompt(WHAT, picture(17)).media
    assert again is not None
    prompt.media.restore(again)
    looked_at = engine.encoded
    back = []
    for part in made:
        assert part is not None
        row = engine.admit(
            [*prompt.tokens, *part],
            max_tokens=10 - len(part),
            media=prompt.media,
            generated_tokens=len(part),
            cache_salt=salts[1],
            **more,
        )
        back.append((row, part))
    engine.finish()
    for row, part in back:
        assert [*part, *engine.tokens[row]] == engine.tokens[alone]
        assert not is_kept or engine.started[row].cached_tokens >= len(prompt.tokens) - 1
    assert engine.encoded == looked_at + (0 if is_kept else 1)
    with pytest.raises(ValueError, match="something else"):
        prompt.media.restore(engine.prompt(WHAT, picture(18)).media)  # type: ignore[arg-type]


TEXT = [place * 37 % 240 + 1 for place in range(30)]
AFTER_TEXT = 9
COUNTED = -12
"""The rope delta of a picture of 16 tokens in a square, which takes four positions."""


def look(forward: Forward) -> tuple[mx.array, dict[str, Any]]:
    """Embed a picture as it is encoded, alone with its own tokens; return these and the arguments
    for a forward pass over them."""
    config = forward.model.config
    start = getattr(config, "vision_start_token_id", config.image_token_id - 1)
    tokens = mx.array([[start, *[config.image_token_id] * 16]])
    features = mx.zeros((16, config.text_config.hidden_size))
    seen = {"image_grid_thw": mx.array([[1, 8, 8]]), "cached_image_features": features}
    return tokens, forward.embed(tokens, pixel_values=mx.zeros((1,)), **seen)


def begin(forward: Forward, tokens: list[int]) -> PromptPrefill:
    row = SequenceRequest(0, tokens, 1, SequenceSampling(0.0))
    return PromptPrefill(forward, row, forward.new_cache(), 0)


def after(forward: Forward, cache: list[Any], deltas: mx.array | None) -> mx.array:
    logits = forward.decode(mx.array([[AFTER_TEXT]]), copy.deepcopy(cache), deltas)[0, -1]
    mx.eval(logits)
    return logits


@pytest.mark.parametrize(
    "model_type", ["cohere_compass", "glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl", "qwen2_vl"]
)
def test_positions_of_a_text_are_its_own(tmp_path: Path, model_type: str) -> None:
    """Pictures of other prompts are encoded between its chunks, and rows with pictures decode."""
    with without_processors():
        forward = Forward(open_checkpoint(make_vlm_model(tmp_path, model_type)).model)
    mx.eval(forward.model.parameters())
    alone = begin(forward, TEXT)
    right = alone.finish()
    mx.eval(right, cache_states(alone.prompt_cache))
    decoded = after(forward, alone.prompt_cache, alone.rope_deltas())

    both = join(*(copy.deepcopy(alone.prompt_cache) for _ in range(2)))
    deltas = mx.array([[COUNTED], [2 * COUNTED]])

    def interrupt() -> None:
        look(forward)
        mx.eval(forward.decode(mx.array([[1], [2]]), both, deltas))

    begun = begin(forward, TEXT)
    for _ in range(2):
        interrupt()
        begun.advance(10, ())
    interrupt()
    logits = begun.finish()
    mx.eval(logits, cache_states(begun.prompt_cache))
    assert mx.allclose(logits, right, atol=1e-4), "in chunks"
    interrupt()
    own_deltas = begun.rope_deltas()
    assert own_deltas is None or own_deltas.tolist() == [[0]]
    interrupt()
    assert mx.allclose(after(forward, begun.prompt_cache, own_deltas), decoded, atol=1e-4)
    # A row with a picture decodes alone, and a text is read before it.
    token, cache = mx.array([[AFTER_TEXT]]), copy.deepcopy(begun.prompt_cache)
    first = mx.zeros((1, 1) if model_type == "cohere_compass" else (3, 1, 1), mx.int32)
    place = {"position_ids": first + len(TEXT) + COUNTED}
    placed = forward.prompt(token, cache, place)[0, -1]
    assert not mx.allclose(placed, decoded, atol=1e-3)
    begin(forward, TEXT * 2).advance(40, ())
    found = after(forward, begun.prompt_cache, mx.array([[COUNTED]]))
    assert mx.allclose(found, placed, atol=1e-4), "alone"
    # The class's own positions of a whole prompt are right.
    tokens, arguments = look(forward)
    whole = forward.prompt(tokens, forward.new_cache(), arguments)
    grid = {"image_grid_thw": mx.array([[1, 8, 8]])}
    arguments["position_ids"] = forward.language_model.get_rope_index(tokens, **grid)[0]
    placed = forward.prompt(tokens, forward.new_cache(), arguments)
    assert mx.allclose(whole, placed, atol=1e-4), "at once"
