"""Prompts with media as keys: what is different is told apart, and nothing else."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.states import MediaKind
from lmx.worker.mlx.media.spans import MediaSpan, MediaSpans, digest_of

PLACEHOLDER = 7


def span(places: Sequence[int], seed: int = 0, kind: MediaKind = MediaKind.IMAGE) -> MediaSpan:
    tokens = np.full(len(places), PLACEHOLDER, np.int32)
    inputs = {"pixel_values": np.full((2, 3), seed, np.float32)}
    return MediaSpan(
        kind,
        np.array(places, np.int32),
        tokens,
        np.arange(len(places), dtype=np.int32),
        inputs,
        digest_of(kind, tokens, inputs),
    )


PROMPT = [1, 2, *[PLACEHOLDER] * 6, 3, *[PLACEHOLDER] * 6, 4, 5]
FIRST, SECOND = range(2, 8), range(9, 15)


def test_text_keeps_its_tokens_and_placeholders_become_negative() -> None:
    keys = MediaSpans((span(FIRST), span(SECOND, 1))).keyed(PROMPT)
    text = [place for place, token in enumerate(PROMPT) if token != PLACEHOLDER]
    assert keys[text].tolist() == [PROMPT[place] for place in text]
    assert (np.delete(keys, text) < 0).all()
    assert len(set(np.delete(keys, text).tolist())) == 12


def test_the_same_picture_has_the_same_keys_wherever_it_stands() -> None:
    keys = MediaSpans((span(FIRST), span(SECOND))).keyed(PROMPT)
    assert keys[2:8].tolist() == keys[9:15].tolist()


def test_other_pictures_have_other_keys() -> None:
    one, other = MediaSpans((span(FIRST),)), MediaSpans((span(FIRST, 1),))
    assert not np.intersect1d(one.keyed(PROMPT)[2:8], other.keyed(PROMPT)[2:8]).size


@given(st.integers(0, len(PROMPT) + 3))
def test_a_part_of_a_prompt_and_more_than_it_have_the_same_keys(length: int) -> None:
    media = MediaSpans((span(FIRST), span(SECOND, 1)))
    longer = [*PROMPT, 8, 9, PLACEHOLDER]
    whole = media.keyed(longer)
    assert media.keyed(longer[:length]).tolist() == whole[:length].tolist()
    # Behind the prompt is the answer: what it has drawn is a token, whatever its number.
    assert whole[-3:].tolist() == [8, 9, PLACEHOLDER]


def test_few_placeholders_are_distinguished_by_the_salt() -> None:
    short, other = MediaSpans((span(range(4)),)), MediaSpans((span(range(4), 1),))
    assert short.salt and other.salt and short.salt != other.salt
    assert MediaSpans((span(range(5)),)).salt == ""


def test_the_digest_is_of_all_that_the_model_sees() -> None:
    tokens = np.array([1, 2], np.int32)
    inputs = {"a": np.zeros((2, 3), np.float32), "b": [np.zeros(2), 5, "x"]}
    known = digest_of(MediaKind.IMAGE, tokens, inputs)
    assert known == digest_of(MediaKind.IMAGE, tokens, dict(reversed(inputs.items())))
    changed = (
        (MediaKind.VIDEO, tokens, inputs),
        (MediaKind.IMAGE, tokens + 1, inputs),
        (MediaKind.IMAGE, tokens, inputs | {"a": np.zeros((3, 2), np.float32)}),
        (MediaKind.IMAGE, tokens, inputs | {"a": np.zeros((2, 3), np.int32)}),
        (MediaKind.IMAGE, tokens, inputs | {"b": [np.zeros(2), 6, "x"]}),
        (MediaKind.IMAGE, tokens, {"a": inputs["a"], "c": inputs["b"]}),
    )
    assert known not in [digest_of(*one) for one in changed]


def test_counts_are_by_kind() -> None:
    media = MediaSpans((span(FIRST), span(SECOND, kind=MediaKind.AUDIO)))
    assert (media.image_tokens, media.audio_tokens, media.video_tokens) == (6, 6, 0)
    assert media.size_bytes == sum(
        array.nbytes for span in media.spans for array in span.inputs.values()
    )
    assert media.size_bytes > 0
