"""What a terminal shows of an answer."""

import pytest
from rich.console import Console

from lmx.supervisor.cli.chat.terminal import finished_length, markdown, stats_text


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("half a line", ""),
        ("a paragraph\n", ""),
        ("a paragraph\n\n", ""),
        ("a paragraph\n\nb", "a paragraph\n\n"),
        ("1. one\n\n   more of one\n", ""),
        ("1. one\n\n2. two", "1. one\n\n"),
        ("```py\na\n\nb\n", ""),
        ("```py\na\n\nb\n```\n\nc", "```py\na\n\nb\n```\n\n"),
        ("~~~\n```\n\na\n", ""),
    ],
)
def test_blocks_are_printed_when_they_are_finished(text: str, finished: str) -> None:
    assert text[: finished_length(text)] == finished


def test_nothing_that_a_model_says_vanishes() -> None:
    console = Console(width=60, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(
            markdown(
                "<div>html</div> and `code` and [a link](https://x.example)\n\n| a |\n|---|\n| b |"
            )
        )
    shown = captured.get()
    for word in ("<div>html</div>", "code", "https://x.example", "a", "b"):
        assert word in shown
    assert "|---|" not in shown


def test_tokens_and_speed() -> None:
    usage = {"prompt_tokens": 37, "completion_tokens": 31, "cached_tokens": 12}
    timings = {"tokens_per_s": 1.84, "first_token_s": 0.456, "load_s": 0.0}
    assert stats_text(usage, timings) == (
        "37 tokens asked (12 cached), 31 answered, 1.8 tokens/s, first token after 0.46 s"
    )
    assert stats_text({}, {}) == "0 tokens asked, 0 answered"
