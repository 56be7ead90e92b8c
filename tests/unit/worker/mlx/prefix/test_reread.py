"""Which prompts were read again, and why; without a model."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.states import RereadReason
from lmx.worker.mlx.prefix.reread import Kept, Overlap, RecentPrompts
from lmx.worker.mlx.prefix.tree import Tokens

NOTHING = Kept(0, 0)


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(1, 50_000), k=length)


def array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, np.int32)


SYSTEM, TALK = text(1, 400), text(2, 3000)
FIRST = [*SYSTEM, 11, 12, *TALK]
ANSWER = text(3, 500)
MORE = text(4, 300)


def overlap(
    new: Sequence[int], cached_tokens: int, *earlier: Sequence[int], salt: str = "s"
) -> Overlap | None:
    recent = RecentPrompts()
    for prompt in earlier:
        recent.note(array(prompt), len(FIRST), "s")
    return recent.overlap(array(new), salt, cached_tokens)


@pytest.mark.parametrize(
    ("new", "cached", "kept", "reason", "position", "again"),
    [
        # Another date in the system prompt.
        ([*SYSTEM, 11, 99, *TALK, *MORE], 401, NOTHING, RereadReason.DIFFERS, 401, 2976),
        # One more token there, so that all others have other places.
        ([*SYSTEM, 7, 11, 12, *TALK, *MORE], 400, NOTHING, RereadReason.DIFFERS, 400, 2976),
        # The oldest messages are left out.
        ([*SYSTEM, *TALK[1000:], *MORE], 400, NOTHING, RereadReason.DIFFERS, 400, 1984),
        # The template leaves the beginning of an answer out.
        ([*FIRST, *ANSWER[40:], *MORE], 3402, NOTHING, RereadReason.ANSWER, 3402, 448),
        ([*SYSTEM, -5, -6, *TALK], 400, NOTHING, RereadReason.MEDIA, 400, 2976),
        # It continues what is no longer there, or there in another way.
        ([*FIRST, *ANSWER, *MORE], 0, NOTHING, RereadReason.EVICTED, 0, 3902),
        ([*FIRST, *ANSWER, *MORE], 900, Kept(900, 1000), RereadReason.EVICTED, 900, 3002),
        ([*FIRST, *ANSWER, *MORE], 512, Kept(512, 3900), RereadReason.NOT_CUTTABLE, 512, 3390),
        ([*FIRST, *ANSWER, *MORE], 512, Kept(3902, 3902), RereadReason.DISK, 512, 3390),
        ([*FIRST, *ANSWER, *MORE], 0, None, RereadReason.NO_CACHE, 0, 3902),
        (FIRST, 0, NOTHING, RereadReason.EVICTED, 0, 3401),
    ],
)
def test_reasons(
    new: list[int],
    cached: int,
    kept: Kept | None,
    reason: RereadReason,
    position: int,
    again: int,
) -> None:
    found = overlap(new, cached, [*FIRST, *ANSWER])
    assert found is not None
    explained = found.explained(kept, scored=False)
    assert (explained.reason, explained.position) == (reason, position)
    # Blocks are counted whole.
    assert again - 32 <= explained.expected_tokens - cached <= again
    scored = found.explained(kept, scored=True)
    if kept is not None:
        assert scored.reason is RereadReason.PROMPT_LOGPROBS


def test_the_tokens_around_the_place_are_shown() -> None:
    found = overlap([*SYSTEM, 11, 99, *TALK], 401, FIRST)
    assert found is not None
    shown = found.explained(NOTHING, scored=False)
    assert list(shown.before) == [*SYSTEM, 11][-24:]
    assert list(shown.was) == [12, *TALK[:23]] and list(shown.now) == [99, *TALK[:23]]


@pytest.mark.parametrize(
    ("new", "cached"),
    [
        # What continues, and is found.
        ([*FIRST, *ANSWER, *MORE], 3902),
        ([*FIRST, *ANSWER, *MORE], 3700),
        # Another conversation with the same system prompt, cached or too short to matter.
        ([*SYSTEM, *text(9, 3000)], 400),
        (text(9, 3000), 0),
        # Little of much.
        ([*FIRST[:300], *text(9, 9000)], 0),
        # A text that repeats itself has few different blocks.
        ([*FIRST[:300], *[7] * 9000], 300),
        ([5], 0),
    ],
)
def test_nothing_is_said_of_what_costs_nothing(new: list[int], cached: int) -> None:
    assert overlap(new, cached, [*FIRST, *ANSWER], [7] * 9000) is None


def test_salts_are_never_compared() -> None:
    assert overlap(FIRST, 0, FIRST) is not None
    assert overlap(FIRST, 0, FIRST, salt="t") is None
    assert overlap(FIRST, 0, FIRST, salt="") is None


def test_the_prompt_that_is_repeated_most_explains() -> None:
    # Both have the system prompt, and the nearest in its beginning is the other conversation.
    date = [*SYSTEM[:50], 99]
    found = overlap(
        [*date, *SYSTEM[51:], *TALK], 50,
        [*SYSTEM, 11, 12, *TALK], [*date, *SYSTEM[51:], *text(9, 1000)],
    )  # fmt: skip
    assert found is not None and found.earlier.tolist() == FIRST
    assert found.common_tokens == 50


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.sampled_from(["a", "b"])), max_size=40
    )
)
def test_the_memory_is_bounded_and_a_conversation_is_in_it_once(
    notes: list[tuple[int, int, str]],
) -> None:
    recent = RecentPrompts(most_prompts=5, most_tokens=150)
    for seed, length, salt in notes:
        tokens = array(text(seed, length))
        recent.note(tokens, length, salt)
        held = list(recent._prompts)
        assert len(held) <= 5
        assert recent._tokens == sum(len(one.tokens) for one in held) <= 150
        for one in held:
            others = [other for other in held if other is not one and other.salt == one.salt]
            assert not any(other.begins(one.tokens) for other in others)
        assert any(one.salt == salt and array(text(seed, length)).tolist() == one.tokens.tolist()
                   [:length] for one in held)  # fmt: skip


def test_what_is_too_large_is_not_remembered() -> None:
    recent = RecentPrompts(most_tokens=100)
    recent.note(array(text(1, 101)), 101, "s")
    recent.note(array([]), 0, "s")
    assert not recent._prompts


@given(st.integers(0, 2**32), st.integers(0, 600), st.integers(0, 40), st.data())
def test_what_two_prompts_share_is_counted_right(
    seed: int, at: int, inserted: int, data: st.DataObject
) -> None:
    """Never more than was computed, wherever a difference stands, whatever was cached."""
    earlier = text(seed, 2000)
    new = [*earlier[:at], *([-1] * inserted), *earlier[at + 1 :]]
    cached = data.draw(st.integers(0, at))
    found = overlap(new, cached, earlier)
    assert found is not None
    assert found.common_tokens == at
    assert len(new) - 100 - inserted <= cached + found.again_tokens <= len(new) - 1
