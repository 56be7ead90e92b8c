# ruff: noqa: RUF001
"""A text is cut into the sentences that a person would hear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.text.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  \n ", []),
        ("Without an end", ["Without an end"]),
        (
            "Dr. Smith met Mr. J. S. Bach at noon. He paid $1,000.50 at 3.14 in all.",
            ["Dr. Smith met Mr. J. S. Bach at noon.", "He paid $1,000.50 at 3.14 in all."],
        ),
        (
            "They sell pears, etc. in here all day. They sell apples, etc. We left the shop.",
            ["They sell pears, etc. in here all day.", "They sell apples, etc.",
             "We left the shop."],
        ),
        (
            'He asked her: "Are you sure?" She said nothing... and left. What then!? Nobody knew.',
            ['He asked her: "Are you sure?"', "She said nothing... and left.",
             "What then!? Nobody knew."],
        ),
        ("See v1.2.3 on https://a.b/c.d now. e.g. this one.",
         ["See v1.2.3 on https://a.b/c.d now. e.g. this one."]),
        ("1. The first of the items\n2. The second of them",
         ["1. The first of the items", "2. The second of them"]),
        ("The first paragraph\nin two lines\n\nThe second paragraph",
         ["The first paragraph in two lines", "The second paragraph"]),
        ("今天天气真的很好！我们一起去公园吧？好的。",
         ["今天天气真的很好！", "我们一起去公园吧？", "好的。"]),
        ("The answer to your question is no. We pay the bill No. 5 and no other.",
         ["The answer to your question is no.", "We pay the bill No. 5 and no other."]),
        ("Yes. No. But it is not so easy.", ["Yes. No. But it is not so easy."]),
    ],
)  # fmt: skip
def test_where_sentences_end(text: str, expected: list[str]) -> None:
    assert sentences(text, 160) == expected


def test_a_long_sentence_is_cut_where_a_reader_would_pause() -> None:
    text = "When it rains in the morning; and it often does, we stay at home for the whole long day"
    assert sentences(text, 60) == [
        "When it rains in the morning;",
        "and it often does, we stay at home for the whole long day",
    ]
    assert sentences("word, " * 20, 60) == ["word, " * 9 + "word,", "word, " * 9 + "word,"]
    assert [len(part) for part in sentences("a" * 150, 60)] == [60, 60, 30]


@given(st.text("aB. 1,!?…—\n\"'“好。，Dr", max_size=300), st.integers(24, 80))
def test_nothing_is_lost_and_nothing_is_too_long(text: str, most: int) -> None:
    parts = sentences(text, most)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part) <= most for part in parts)
