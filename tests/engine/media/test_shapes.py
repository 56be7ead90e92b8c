"""A small real model that sees: what it says of pictures, alone and in company."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import EngineRunner, spec_of

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.engine import EncodedPrompt, PromptSource
from lmx.worker.media.values import Picture
from lmx.worker.mlx.engine import MlxGenerator

pytestmark = pytest.mark.engine

RED, BLUE, GREEN = (255, 0, 0), (0, 0, 255), (0, 200, 0)
WHAT = "What is in the image?"


def square(color: tuple[int, int, int], left: int = 28) -> Picture:
    pixels = np.zeros((112, 112, 3), np.uint8)
    pixels[28:84, left : left + 56] = color
    return Picture(pixels)


class Seeing(EngineRunner):
    """An engine whose model sees."""

    def prompt(self, text: str, *pictures: Picture, after: tuple[Any, ...] = ()) -> EncodedPrompt:
        content = [{"type": "image", "media": place} for place in range(len(pictures))]
        message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        return self.generator.encode(PromptSource(messages=[message, *after], media=pictures))

    def ask(self, prompt: EncodedPrompt, max_tokens: int = 12, **more: Any) -> int:
        return self.admit(prompt.tokens, max_tokens=max_tokens, media=prompt.media, **more)

    def answer(self, row_id: int) -> str:
        assert row_id not in self.failed
        return self.text(self.tokens[row_id])

    @property
    def encoded(self) -> int:
        """How many pictures the model has looked at."""
        assert isinstance(self.generator, MlxGenerator)
        assert self.generator._features is not None
        return self.generator._features.encoded


@pytest.fixture(scope="module")
def loaded(shapes_dir: Path) -> Seeing:
    return Seeing(spec_of(shapes_dir, prefix_cache=PrefixCacheSpec(1 << 28, None, 0)))


@pytest.fixture
def engine(loaded: Seeing) -> Iterator[Seeing]:
    yield loaded
    loaded.clear()


def test_it_sees_colours_beside_a_text_row(engine: Seeing) -> None:
    red, blue = engine.prompt(WHAT, square(RED)), engine.prompt(WHAT, square(BLUE))
    rows = engine.ask(red), engine.ask(blue), engine.admit("What is the capital of France?")
    engine.finish()
    answers = [engine.answer(row) for row in rows]
    assert "red" in answers[0] and "blue" in answers[1] and "Paris" in answers[2]


def test_it_tells_two_pictures_apart(engine: Seeing) -> None:
    what = "What is in the two images?"
    row = engine.ask(engine.prompt(what, square(RED), square(BLUE)), 24)
    other = engine.ask(engine.prompt(what, square(BLUE), square(RED)), 24)
    engine.finish()
    first, second = engine.answer(row), engine.answer(other)
    assert 0 <= first.find("red") < first.find("blue")
    assert 0 <= second.find("blue") < second.find("red")


def test_the_next_turn_does_not_look_again(engine: Seeing) -> None:
    prompt = engine.prompt(WHAT, square(GREEN))
    row = engine.ask(prompt)
    engine.finish()
    before = engine.encoded
    said = engine.answer(row)
    after = ({"role": "assistant", "content": said}, {"role": "user", "content": "Which colour?"})
    again = engine.ask(engine.prompt(WHAT, square(GREEN), after=after), 4)
    engine.finish()
    assert engine.started[again].cached_tokens >= len(prompt.tokens) - 1
    assert engine.encoded == before


def test_a_picture_behind_the_cached_part_is_looked_at_once(engine: Seeing) -> None:
    """The text before it differs, so that nothing of it is cached but what was seen."""
    before = engine.encoded
    one = engine.ask(engine.prompt(WHAT, square(RED, 3)), 2, cache_salt="x")
    engine.finish()
    other = engine.prompt("Look! " + WHAT, square(RED, 3))
    assert other.media is not None
    two = engine.ask(other, 2, cache_salt="x")
    engine.finish()
    assert engine.encoded == before + 1
    assert not {one, two} & engine.failed.keys()


def test_others_do_not_learn_what_was_seen(engine: Seeing) -> None:
    before = engine.encoded
    for salt in ("one", "other"):
        row = engine.ask(engine.prompt(WHAT, square(BLUE, 5)), 2, cache_salt=salt)
        engine.finish()
        assert engine.started[row].cached_tokens == 0
    assert engine.encoded == before + 2


def test_only_the_beginning_before_another_picture_is_shared(engine: Seeing) -> None:
    first = engine.prompt(WHAT, square(RED, 1))
    engine.ask(first, 2)
    engine.finish()
    other = engine.ask(engine.prompt(WHAT, square(BLUE, 1)), 12)
    engine.finish()
    place = list(first.tokens).index(49190)
    assert engine.started[other].cached_tokens <= place
    assert "blue" in engine.answer(other)


def test_encoding_is_a_step_of_its_own(engine: Seeing) -> None:
    talking = engine.admit("Tell me a story.", max_tokens=40)
    while not engine.tokens[talking]:
        engine.step()
    seeing = engine.ask(engine.prompt(WHAT, square(RED, 7), square(GREEN, 7)), 2)
    encoding = 0
    while seeing not in engine.started:
        output = engine.step()
        if output.media_tokens:
            encoding += 1
            assert output.media_tokens == 16 and not output.tokens and not output.prefill_tokens
            # The other row is not kept waiting by two pictures in a row.
            assert engine.step().tokens
    assert encoding == 2
    engine.finish()


def test_answers_to_one_prompt_share_what_was_seen(engine: Seeing) -> None:
    before = engine.encoded
    prompt = engine.prompt(WHAT, square(BLUE, 9))
    rows = [engine.ask(prompt) for _ in range(3)]
    engine.finish()
    assert engine.encoded == before + 1
    assert all("blue" in engine.answer(row) for row in rows)


def test_a_row_that_gave_way_goes_on(engine: Seeing) -> None:
    prompt = engine.prompt(WHAT, square(GREEN, 11))
    alone = engine.ask(prompt, 10, cache_salt="alone")
    engine.finish()
    row = engine.ask(prompt, 10, cache_salt="preempted")
    while len(engine.tokens[row]) < 4:
        engine.step()
    engine.flush()
    made = engine.generator.preempt(row)
    assert made is not None
    del engine.live[row]
    again = engine.admit(
        [*prompt.tokens, *made], max_tokens=10 - len(made), media=prompt.media,
        made_tokens=len(made), cache_salt="preempted",
    )  # fmt: skip
    engine.finish()
    assert [*made, *engine.tokens[again]] == engine.tokens[alone]
    assert engine.started[again].cached_tokens >= len(prompt.tokens)
