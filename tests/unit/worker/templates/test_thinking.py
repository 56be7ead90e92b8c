"""Which effort a template gets for the one that was requested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.templates.thinking import EFFORTS, nearest_effort

QWEN = ("low", "medium", "xhigh")
GPT_OSS = ("low", "medium", "high")
MISTRAL = ("none", "high")


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        (QWEN, ("low", "low", "low", "medium", "xhigh", "xhigh", "xhigh")),
        (GPT_OSS, ("low", "low", "low", "medium", "high", "high", "high")),
        # "none" switches the thinking off, and so stands for itself alone.
        (MISTRAL, ("none", "high", "high", "high", "high", "high", "high")),
        (("none",), ("none", None, None, None, None, None, None)),
        ((), (None,) * 7),
        (EFFORTS, EFFORTS),
    ],
)
def test_the_nearest_effort(taken: tuple[str, ...], wanted: tuple[str | None, ...]) -> None:
    assert tuple(nearest_effort(asked, taken) for asked in EFFORTS) == wanted


@given(st.sets(st.sampled_from(EFFORTS)))
def test_the_order_of_efforts_is_kept(words: set[str]) -> None:
    taken = tuple(sorted(words, key=EFFORTS.index))
    found = [nearest_effort(asked, taken) for asked in EFFORTS]
    thinking = [EFFORTS.index(one) for one in found[1:] if one is not None]
    assert thinking == sorted(thinking), "more was requested, and less was given"
    for asked, got in zip(EFFORTS, found, strict=True):
        assert got == asked if asked in taken else got is None or got in taken
        assert (got is None) == (asked not in taken and not words - {"none"})


def test_a_word_of_the_template_s_own_is_left_to_it() -> None:
    assert nearest_effort("ultra", QWEN) == "ultra"
