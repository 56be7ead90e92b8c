"""A small real model that sees: what it says of pictures, alone and in company."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.media.values import Picture
from tests.support.rigs.engine_rig import spec_of
from tests.support.rigs.seeing_rig import Seeing

pytestmark = pytest.mark.long

RED, BLUE, GREEN = (255, 0, 0), (0, 0, 255), (0, 200, 0)
WHAT = "What is in the image?"


def square(color: tuple[int, int, int], left: int = 28) -> Picture:
    pixels = np.zeros((112, 112, 3), np.uint8)
    pixels[28:84, left : left + 56] = color
    return Picture(pixels)


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


def test_it_distinguishes_two_pictures(engine: Seeing) -> None:
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
