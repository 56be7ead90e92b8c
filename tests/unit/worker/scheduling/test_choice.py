"""One answer: what its tokens become, with markers, stops, logprobs and limits together."""

from collections.abc import Sequence
from typing import Any

import pytest

from lmx.protocol.messages.data import Delta
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.worker.engine.values import (
    ReasoningMarkers,
    SequenceRequest,
    SequenceSampling,
    TokenScores,
)
from lmx.worker.formats.parser import OutputParser
from lmx.worker.scheduling.choice import Choice
from lmx.worker.scheduling.requests import ChoiceFinished, EngineRequest, RequestOutput, TextRules

EOS = 0
THINK = ReasoningMarkers("<think>", "</think>")
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


class Pieces:
    """A detokenizer whose token n is the n-th piece of a text, from 1."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def add(self, token: int) -> str:
        return self.pieces[token - 1]

    def flush(self) -> str:
        return ""


def run(pieces: Sequence[str], *, max_tokens: int = 100, **rules: Any) -> list[RequestOutput]:
    """Return what an answer of these pieces, and then EOS, gives out."""
    rules.setdefault("eos", frozenset({EOS}))
    row_request = SequenceRequest(1, [9], max_tokens, SequenceSampling(0))
    job = EngineRequest(1, "req", (row_request,), TextRules(**rules), 1, 0.0)
    row = Choice(job, 0, Pieces(pieces), lambda token: pieces[token - 1].encode())
    out: list[RequestOutput] = []
    for token in [*range(1, len(pieces) + 1), EOS]:
        if row.advance(token, TokenScores(-(token + 1) / 10, ()), out):
            return out
    raise AssertionError("an answer that never ends")


def texts(out: list[RequestOutput]) -> list[tuple[DeltaKind, str]]:
    return [(o.kind, o.text) for o in out if isinstance(o, Delta) and o.text]


def end(out: list[RequestOutput]) -> ChoiceFinished:
    assert isinstance(out[-1], ChoiceFinished)
    return out[-1]


def logprob_ids(out: list[RequestOutput]) -> list[int]:
    return [entry.token_id for o in out if isinstance(o, Delta) for entry in o.logprobs]


def parser(parallel: bool = True, thinking_open: bool = False) -> Any:
    return lambda: OutputParser(THINK, thinking_open, "json_tools", (TOOL,), parallel)


def test_plain_text_ends_with_eos() -> None:
    out = run(["a", "b"])
    assert texts(out) == [(DeltaKind.CONTENT, "a"), (DeltaKind.CONTENT, "b")]
    assert end(out)._replace(mean_logprob=0) == ChoiceFinished(1, 0, FinishReason.STOP, None, 2, 0)


@pytest.mark.parametrize(
    ("pieces", "rules", "mean"),
    [
        (["a", "b"], {}, -0.2),
        ([], {}, -0.1),
        (["a", "b", "c"], {"stop_ids": frozenset({2})}, -0.25),
        (["a", "b", "c"], {"max_tokens": 2}, -0.25),
    ],
)
def test_the_token_that_ends_an_answer_counts_in_its_mean_logprob(
    pieces: list[str], rules: dict[str, Any], mean: float
) -> None:
    """Otherwise an empty answer would be the best of several."""
    assert end(run(pieces, **rules)).mean_logprob == pytest.approx(mean)


@pytest.mark.parametrize(
    ("rules", "expected", "reason", "stop"),
    [
        ({"stop": ("bc",)}, "a", FinishReason.STOP, "bc"),
        ({"stop": ("bc",), "include_stop": True}, "abc", FinishReason.STOP, "bc"),
        ({"stop": ("bc",), "min_tokens": 3}, "abcd", FinishReason.STOP, None),
        ({"stop": ("cd",), "min_tokens": 2}, "ab", FinishReason.STOP, "cd"),
        ({"stop_ids": frozenset({3})}, "ab", FinishReason.STOP, "3"),
        ({"stop_ids": frozenset({3}), "min_tokens": 3}, "abcd", FinishReason.STOP, None),
        ({"max_tokens": 2}, "ab", FinishReason.LENGTH, None),
        ({"max_tokens": 3, "stop": ("cde",)}, "abc", FinishReason.LENGTH, None),
    ],
)
def test_what_ends_an_answer(
    rules: dict[str, Any], expected: str, reason: FinishReason, stop: str | None
) -> None:
    out = run(["a", "b", "c", "d"], **rules)
    assert "".join(text for _, text in texts(out)) == expected
    assert (end(out).reason, end(out).stop) == (reason, stop)


def test_without_eos_only_the_limit_ends_it() -> None:
    row_request = SequenceRequest(1, [9], 5, SequenceSampling(0))
    job = EngineRequest(1, "req", (row_request,), TextRules(eos=frozenset()), 1, 0.0)
    row = Choice(job, 0, Pieces(["", "x"]), lambda token: b"")
    out: list[RequestOutput] = []
    assert [row.advance(token, None, out) for token in (1, 2, 1, 2, 1)] == [False] * 4 + [True]
    assert end(out).reason is FinishReason.LENGTH


def test_tokens_are_counted_once_wherever_their_text_goes() -> None:
    pieces = ["<thi", "nk>", "hm", "</think>", "\n\n", "so", ' <tool_call>{"name": "no', 'w"}']
    for rules in ({}, {"make_parser": parser()}, {"logprobs": True}):
        out = run([*pieces, "</tool_call>"], **rules)
        assert sum(o.tokens for o in out if isinstance(o, Delta)) == 9
        assert end(out).tokens == 9


def test_reasoning_content_and_calls_are_distinguished() -> None:
    pieces = ["<think>", "why", " not", "</think>", "\n", "Let me see.", "<tool_call>"]
    pieces += ['{"name": "now", "argu', 'ments": {"zone":', ' "UTC"}}', "</tool_call>"]
    out = run(pieces, make_parser=parser())
    joined: dict[DeltaKind, str] = {}
    for kind, text in texts(out):
        joined[kind] = joined.get(kind, "") + text
    assert joined == {
        DeltaKind.REASONING: "why not",
        DeltaKind.CONTENT: "Let me see.",
        DeltaKind.TOOL_CALL: '{"zone": "UTC"}',
    }
    calls = [o.call for o in out if isinstance(o, Delta) and o.call and o.call.name]
    assert [(call.index, call.name) for call in calls] == [(0, "now")]
    assert end(out).reason is FinishReason.TOOL_CALLS


def test_one_call_is_the_end_when_only_one_is_wanted() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    out = run([call, " and", call], make_parser=parser(parallel=False))
    assert end(out).reason is FinishReason.TOOL_CALLS
    assert end(out).tokens == 1
    assert DeltaKind.CONTENT not in dict(texts(out))


@pytest.mark.parametrize(
    ("rules", "reason", "stop"),
    [
        ({"stop": ("two",)}, FinishReason.STOP, "two"),
        ({"stop_ids": frozenset({3})}, FinishReason.STOP, "3"),
        # Behind the arguments, and at the end of the text.
        ({"stop": ("</tool_call>",)}, FinishReason.TOOL_CALLS, "</tool_call>"),
        ({"stop": ("}}\n",)}, FinishReason.STOP, "}}\n"),
        ({"stop": ("other",)}, FinishReason.TOOL_CALLS, None),
    ],
)
def test_a_call_that_a_stop_cuts_off_is_none_to_make(
    rules: dict[str, Any], reason: FinishReason, stop: str | None
) -> None:
    pieces = ['<tool_call>{"name": "now", "arguments": {"text": "one ', "tw", 'o"}}', "\n"]
    out = run([*pieces, "</tool_call>"], make_parser=parser(), **rules)
    assert (end(out).reason, end(out).stop) == (reason, stop)
    # What comes after a whole call changes nothing.
    whole = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    last = end(run([whole, "two"], make_parser=parser(), stop=("two",)))
    assert (last.reason, last.stop) == (FinishReason.TOOL_CALLS, "two")


def test_logprobs_are_of_content_alone_and_in_order() -> None:
    pieces = [
        "<think>",
        "why",
        "</think>",
        "a",
        " <",
        "b",
        "<tool",
        '_call>{"name": "now"}</tool_call>',
        "c",
    ]
    out = run(pieces, make_parser=parser(), logprobs=True)
    content = "".join(text for kind, text in texts(out) if kind is DeltaKind.CONTENT)
    ids = logprob_ids(out)
    assert ids == sorted(ids)
    assert "".join(pieces[n - 1] for n in ids).strip() == content.strip()
    assert not {1, 2, 3} & set(ids)


def test_white_space_behind_a_call_has_no_logprobs() -> None:
    call = '<tool_call>{"name": "now"}</tool_call>'
    out = run([call, "\n"], make_parser=parser(), logprobs=True)
    assert logprob_ids(out) == [] and end(out).reason is FinishReason.TOOL_CALLS
    assert sum(o.tokens for o in out if isinstance(o, Delta)) == end(out).tokens == 2
    # Before a text it belongs to it, and so does the beginning of a mark that never comes.
    assert logprob_ids(run([call, "\n", "b"], make_parser=parser(), logprobs=True)) == [2, 3]
    assert logprob_ids(run([call, "b <tool"], make_parser=parser(), logprobs=True)) == [2]


def test_logprobs_go_with_the_end_of_their_text() -> None:
    out = run(["", "é", "b", "c"], logprobs=True, stop=("xx",))
    pieces = [o for o in out if isinstance(o, Delta)]
    assert [[entry.token_id for entry in piece.logprobs] for piece in pieces] == [[1, 2], [3], [4]]
    assert pieces[0].text == "é"


def test_tokens_of_a_stop_string_have_no_logprobs() -> None:
    assert logprob_ids(run(["a", "b", "c", "d"], logprobs=True, stop=("bc",))) == [1]
    with_stop = run(["a", "b", "c", "d"], logprobs=True, stop=("bc",), include_stop=True)
    assert logprob_ids(with_stop) == [1, 2, 3]


def test_reasoning_tokens_are_counted() -> None:
    row_request = SequenceRequest(1, [9], 50, SequenceSampling(0))
    rules = TextRules(eos=frozenset({EOS}), make_parser=parser(thinking_open=True))
    pieces = ["one", " two", "</think>", "three"]
    job = EngineRequest(1, "req", (row_request,), rules, 1, 0.0)
    row = Choice(job, 0, Pieces(pieces), lambda token: b"")
    out: list[RequestOutput] = []
    for token in (1, 2, 3, 4, EOS):
        row.advance(token, None, out)
    assert (row.reasoning_tokens, row.tokens) == (3, 4)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # All of the marks' tokens count, as those of marks that are one token do.
        (["<", "thi", "nk>", "one", "</", "think", ">", "two"], 7),
        (["<think>", "one", "</think>", "two"], 3),
        (["a <", "b", " <th", "ere", "<think>", "c"], 2),
        (["<thi", "s"], 0),
    ],
)
def test_the_tokens_of_marks_are_counted_with_the_reasoning(
    pieces: list[str], expected: int
) -> None:
    row_request = SequenceRequest(1, [9], 50, SequenceSampling(0))
    rules = TextRules(eos=frozenset({EOS}), make_parser=parser())
    row = Choice(
        EngineRequest(1, "req", (row_request,), rules, 1, 0.0), 0, Pieces(pieces), lambda token: b""
    )
    out: list[RequestOutput] = []
    for token in (*range(1, len(pieces) + 1), EOS):
        row.advance(token, None, out)
    assert row.reasoning_tokens == expected
