"""The grammar begins after the thinking, which keeps to its budget."""

from typing import Any

import pytest
from tokenizers import AddedToken

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.states import StructureKind
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import Constraint, ConstraintSource, ReasoningMarkers
from lmx.worker.formats.reasoning import FORMS
from tests.support.models.tiny_models import make_tokenizer, make_word_tokenizer
from tests.support.references.grammar_walk import allowed_set, allowed_tokens, feed

EOS = 256
AS_IT_DOES = Thinking()
DIGIT = Structure(StructureKind.REGEX, "[0-9]", "p")


def compiler(start: str, end: str, start_token: str | None = None) -> ConstraintCompiler:
    marks = [start_token or start, end, "<|message|>", "<|start|>"]
    TOKENIZER.add_tokens([AddedToken(one, special=True) for one in marks])
    # 320: no word of the mask has bits to spare.
    return ConstraintCompiler(TOKENIZER, 320, frozenset({EOS}), ReasoningMarkers(start, end), None)


TOKENIZER = make_tokenizer()
THINK = compiler("<think>", "</think>")
CHANNEL = compiler("<|channel|>analysis<|message|>", "<|stop|>", "<|channel|>")
START, END = TOKENIZER.convert_tokens_to_ids(["<think>", "</think>"])


def tokens(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def constraint(
    structure: Structure | None = DIGIT,
    thinking: Thinking = AS_IT_DOES,
    thinking_open: bool = False,
    of: ConstraintCompiler = THINK,
) -> Constraint:
    maker = of.compile(ConstraintSource(structure, None, thinking, thinking_open))
    assert maker is not None
    return maker()


DIGITS = set(tokens("0123456789"))
BREAK = tokens("\n")[0]


@pytest.mark.parametrize("thinking", [AS_IT_DOES, Thinking(budget_tokens=3)])
def test_nothing_is_thought_where_the_form_is_that_of_the_whole_text(thinking: Thinking) -> None:
    maker = THINK.compile(ConstraintSource(DIGIT, None, thinking, False, only_form=True))
    assert maker is not None
    assert allowed_set(maker()) == DIGITS


def test_a_model_may_think_before_its_answer_or_not() -> None:
    one = constraint()
    assert allowed_set(one) == DIGITS | {START}
    feed(one, [*tokens("7")])
    assert allowed_set(one) == {EOS}
    other = constraint()
    feed(other, [START, *tokens("so 3? no"), END])
    assert allowed_set(other) == DIGITS | {BREAK}
    feed(other, tokens("7"))
    assert allowed_set(other) == {EOS}


def test_thinking_does_not_end_the_answer_where_one_must_come() -> None:
    one = constraint(thinking_open=True)
    # All but EOS and the padding, also the answer's own tokens.
    assert allowed_set(one) == set(range(len(TOKENIZER))) - {EOS}
    with pytest.raises(LmxError):
        one.accept(EOS)


def test_line_breaks_behind_the_thinking_are_bounded() -> None:
    one = constraint(thinking_open=True)
    feed(one, [*tokens("hm\n"), END, *tokens("\n\n\n\n")])
    assert allowed_set(one) == DIGITS


def test_a_line_break_that_is_the_answer_is_not_lost() -> None:
    lines = Structure(StructureKind.REGEX, "\n{6}x", "p")
    one = constraint(lines, thinking_open=True)
    feed(one, [END, *tokens("\n\n\n\n\n\nx")])
    assert allowed_set(one) == {EOS}


def test_thinking_that_is_switched_off_does_not_begin() -> None:
    off = Thinking(enabled=False)
    assert allowed_set(constraint(thinking=off)) == DIGITS
    # The template may not know how to.
    assert END in allowed_set(constraint(thinking=off, thinking_open=True))


@pytest.mark.parametrize("structure", [DIGIT, None])
@pytest.mark.parametrize("thinking_open", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_ends_the_thinking(
    structure: Structure | None, thinking_open: bool, budget: int
) -> None:
    one = constraint(structure, Thinking(budget_tokens=budget), thinking_open)
    feed(one, [] if thinking_open else [START])
    for token in tokens("thinking")[:budget]:
        assert (allowed_tokens(one) is None) is (structure is None)
        one.accept(token)
    assert allowed_set(one) == {END}
    one.accept(END)
    if structure is None:
        assert allowed_tokens(one) is None
        feed(one, [START, *tokens("more than that")])
    else:
        assert allowed_set(one) == DIGITS | {BREAK}


def test_a_budget_costs_nothing_before_thinking_and_without_it() -> None:
    one = constraint(None, Thinking(budget_tokens=0))
    assert allowed_tokens(one) is None
    # A line break is no answer yet.
    feed(one, [BREAK, START])
    assert allowed_set(one) == {END}
    other = constraint(None, Thinking(budget_tokens=0))
    feed(other, [*tokens("answer"), START])
    assert allowed_tokens(other) is None


def test_a_fork_thinks_on_by_itself() -> None:
    one = constraint(thinking=Thinking(budget_tokens=2))
    feed(one, [START, *tokens("a")])
    other = one.fork()
    feed(one, [*tokens("b"), END, *tokens("1")])
    assert len(allowed_set(other)) > 2
    feed(other, [END])
    assert allowed_set(other) == DIGITS | {BREAK}
    assert allowed_set(one) == {EOS}


def test_gpt_oss_thinks_in_a_channel_and_answers_in_another() -> None:
    final = "<|channel|>final<|message|>"
    skipping = constraint(of=CHANNEL)
    feed(skipping, tokens(final + "5"))
    assert allowed_set(skipping) == {EOS}
    thinking = constraint(of=CHANNEL)
    feed(thinking, tokens(f"<|channel|>analysis<|message|>hm<|stop|><|start|>assistant{final}5"))
    assert allowed_set(thinking) == {EOS}
    # Between the two channels, until the first letter decides.
    undecided = constraint(of=CHANNEL)
    feed(undecided, tokens("<|channel|>"))
    assert allowed_set(undecided) == set(tokens("af"))
    fork = undecided.fork()
    feed(fork, tokens("final<|message|>5"))
    feed(undecided, tokens("analysis<|message|>f"))


def test_the_budget_of_gpt_oss_is_not_for_its_answer() -> None:
    budget = Thinking(budget_tokens=1)
    one = constraint(None, budget, of=CHANNEL)
    feed(one, tokens("<|channel|>final<|message|>as long as it likes"))
    assert allowed_tokens(one) is None
    other = constraint(None, budget, of=CHANNEL)
    feed(other, tokens("<|channel|>analysis<|message|>h"))
    assert allowed_set(other) == set(tokens("<|stop|>"))


# Marks that are ordinary text, in any number of tokens

WORDS = ["</", "think", ">\n\n", ">7", "<think>\n", "hm</", ".</think>\n", "</think>8", "\n<think>"]
TEXT = make_word_tokenizer(WORDS)
(SLASH, WORD, WITH_BREAKS, WITH_ANSWER, OPENS, HM, CLOSES, CLOSES_WRONGLY, BREAK_OPENS) = range(
    256, 256 + len(WORDS)
)


def of_text(start: str = "<think>", end: str = "</think>") -> ConstraintCompiler:
    return ConstraintCompiler(
        TEXT, len(TEXT), frozenset({TEXT.eos_token_id}), ReasoningMarkers(start, end), None
    )


def spelled(text: str) -> list[int]:
    return list(TEXT.encode(text))


BY_TEXT = of_text()


def test_a_mark_of_text_may_begin_and_end_inside_tokens() -> None:
    one = constraint(of=BY_TEXT)
    assert allowed_set(one) == DIGITS | {*spelled("<"), OPENS, BREAK_OPENS}
    slow = one.fork()
    feed(one, [OPENS])
    inside = allowed_set(one)
    assert TEXT.eos_token_id not in inside
    assert inside == set(range(len(TEXT))) - {TEXT.eos_token_id, CLOSES_WRONGLY}
    whole = one.fork()
    feed(whole, [CLOSES])
    assert allowed_set(whole) == DIGITS | {BREAK}
    feed(one, [HM, WORD])
    assert WITH_ANSWER not in allowed_set(one)
    assert WITH_BREAKS in allowed_set(one)
    feed(one, [WITH_BREAKS])
    feed(one, spelled("\n\n\n7"))
    assert allowed_set(one) == {TEXT.eos_token_id}
    # It may be spelled, or be no mark after all.
    feed(slow, spelled("<think> < </thin </think>7"))
    assert allowed_set(slow) == {TEXT.eos_token_id}
    other = constraint(of=BY_TEXT)
    feed(other, spelled("<"))
    assert allowed_set(other) == {*spelled("t"), WORD}


def test_an_answer_may_begin_like_the_mark() -> None:
    like = Structure(StructureKind.REGEX, "<(thaw|b)>", "p")
    one = constraint(like, of=BY_TEXT)
    feed(one, spelled("<th"))
    assert allowed_set(one) == set(spelled("ai"))
    fork = one.fork()
    feed(one, spelled("aw>"))
    assert allowed_set(one) == {TEXT.eos_token_id}
    feed(fork, spelled("ink>"))
    assert len(allowed_set(fork)) > 200


@pytest.mark.parametrize("structure", [DIGIT, None])
def test_a_budget_writes_a_mark_of_text(structure: Structure | None) -> None:
    one = constraint(structure, Thinking(budget_tokens=2), thinking_open=True, of=BY_TEXT)
    feed(one, spelled("a<"))
    for token in spelled("</think>"):
        assert allowed_set(one) == {token}
        fork = one.fork()
        assert allowed_set(fork) == {token}
        one.accept(token)
    if structure:
        assert allowed_set(one) == DIGITS | {BREAK}
    else:
        assert allowed_tokens(one) is None
    other = constraint(structure, Thinking(budget_tokens=2), of=BY_TEXT)
    feed(other, [OPENS, CLOSES])
    assert allowed_tokens(other) is None or allowed_set(other) == DIGITS | {BREAK}


def test_the_marks_may_be_words() -> None:
    words = of_text("Here is my thought process:", "Here is my response:")
    one = constraint(of=words)
    feed(one, spelled("Here is my thought process: Here is my thought. Here is my response:\n"))
    assert allowed_set(one) == DIGITS | {BREAK}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.start)
def test_every_family_s_marks_as_ordinary_text(form: Any) -> None:
    if form.token is not None:
        # The form is that of a vocabulary with its tokens.
        return
    words = of_text(form.start, form.end)
    one = constraint(of=words)
    feed(one, spelled(f"{form.start}so{form.end[:-1]} {form.end}\n\n7"))
    assert allowed_set(one) == {TEXT.eos_token_id}
    limited = constraint(DIGIT, Thinking(budget_tokens=1), of=words)
    feed(limited, spelled(f"{form.start}s"))
    for token in spelled(form.end):
        assert allowed_set(limited) == {token}
        limited.accept(token)
    assert allowed_set(limited) == DIGITS | {BREAK}
    # Without a thought.
    at_once = constraint(of=words)
    feed(at_once, spelled("7"))
    assert allowed_set(at_once) == {TEXT.eos_token_id}
