"""What the long day takes for an answer that is only rounded in another way."""

import random
import string

import pytest

from tests.support.faults.long_day import Comparison, may_be_rounded

ALONE = "".join(random.Random(0).choices(string.ascii_letters, k=2000))
OTHER = "".join(random.Random(1).choices(string.ascii_letters, k=2000))


def changed(*places: int) -> str:
    return "".join("!" if n in places else char for n, char in enumerate(ALONE))


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        (changed(1203), True),
        (changed(1999), True),
        (changed(700, 701, 702, *range(720, 1900, 40)), True),
        (changed(*range(700, 2000, 3)), False),
        (changed(199), False),
        (ALONE[:1000] + ALONE[1004:], True),
        (ALONE[:1000], False),
        (ALONE[:1000] + OTHER[1000:], False),
        (ALONE[:1000] + ALONE[:1000], False),
    ],
)
def test_a_rounded_answer_is_mostly_the_one_alone(text: str, may_be: bool) -> None:
    assert may_be_rounded(text, ALONE) is may_be


def test_few_long_answers_are_rounded_in_another_way() -> None:
    assert not Comparison(long_answers=300, rounded=["one"] * 7).too_many_rounded
    assert Comparison(long_answers=300, rounded=["one"] * 8).too_many_rounded
