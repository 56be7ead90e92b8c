"""What the long day takes for an answer that is only rounded in another way."""

import random
import string

import pytest

from tests.support.faults.long_day import same_but_for_rounding

ALONE = "".join(random.Random(0).choices(string.ascii_letters, k=2000))


def changed(*places: int) -> str:
    return "".join("!" if n in places else char for n, char in enumerate(ALONE))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (ALONE, True),
        (changed(1203), True),
        (changed(700, 1203, 1500, 1900), True),
        (changed(700, 800, 1203, 1500, 1900), False),
        (changed(199), False),
        (ALONE[:1000] + ALONE[1004:], True),
        (ALONE[:1000] + ALONE[1006:], False),
        (ALONE[:1000], False),
        (ALONE[:1000] + ALONE[:1000], False),
    ],
)
def test_only_single_characters_far_into_an_answer_may_be_others(text: str, same: bool) -> None:
    assert same_but_for_rounding(text, ALONE) is same
