"""Tokens that alone may come, and words that may not."""

import pytest

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.states import StructureKind
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import Constraint, ConstraintSource
from tests.support.models.tiny_models import make_tiny_model, make_tokenizer
from tests.support.references.grammar_walk import allowed_set
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, spec_of

EOS = 256
VOCABULARY = 300
TOKENIZER = make_tokenizer()
COMPILER = ConstraintCompiler(TOKENIZER, VOCABULARY, frozenset({EOS}), None, None)
CHOICE = Structure(StructureKind.CHOICE, '["ab", "cd"]', "structured_outputs.choice")


def tokens(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def source(structure: Structure | None = None, **bans: tuple[object, ...]) -> ConstraintSource:
    return ConstraintSource(structure, None, Thinking(), False, **bans)  # type: ignore[arg-type]


def constraint(structure: Structure | None = None, **bans: tuple[object, ...]) -> Constraint:
    maker = COMPILER.compile(source(structure, **bans))
    assert maker is not None
    return maker()


def test_nothing_is_banned_by_nothing() -> None:
    assert COMPILER.compile(source()) is None


def test_only_what_is_allowed_may_come() -> None:
    one = constraint(allowed_token_ids=(3, 40, 299))
    for token in (3, 299):
        assert allowed_set(one) == {3, 40, 299}
        one.accept(token)


def test_the_token_that_would_complete_a_bad_word_may_not_come() -> None:
    one = constraint(bad_words=("cat", "x"))
    whole = set(range(VOCABULARY))
    for token in tokens("xca"):
        assert allowed_set(one) == whole - set(tokens("x"))
        one.accept(token)
    twin = one.fork()
    for each in (one, twin):
        assert allowed_set(each) == whole - set(tokens("xt"))
    one.accept(tokens("r")[0])
    assert allowed_set(one) == whole - set(tokens("x"))
    assert allowed_set(twin) == whole - set(tokens("xt"))


def test_bans_go_with_a_form() -> None:
    first, second = tokens("ac")
    assert allowed_set(constraint(CHOICE)) == {first, second}
    one = constraint(CHOICE, bad_words=("cd",), allowed_token_ids=(*tokens("abcd"), EOS))
    one.accept(first)
    one.accept(tokens("b")[0])
    assert allowed_set(one) == {EOS}
    one = constraint(CHOICE, bad_words=("cd",))
    one.accept(second)
    with pytest.raises(LmxError) as caught:
        one.mask()
    assert caught.value.code is ErrorCode.STRUCTURE_NOT_ENFORCEABLE


def test_rows_with_bans_are_alone_what_they_are_in_company(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    runner = EngineRunner(spec_of(make_tiny_model(tmp_path_factory.mktemp("tiny"), "llama")))
    free = runner.alone("b", GREEDY, 12)
    words = runner.generator.constrain(source(bad_words=(runner.text(free[:1]) or "a",)))
    few = runner.generator.constrain(source(allowed_token_ids=(65, 66, 67)))
    assert words is not None
    assert few is not None
    made = [
        runner.alone("a", HOT, 12, constraint=few()),
        runner.alone("b", GREEDY, 12, constraint=words()),
    ]
    assert set(made[0]) <= {65, 66, 67}
    rows = [
        runner.admit("a", HOT, 12, constraint=few()),
        runner.admit("b", GREEDY, 12, constraint=words()),
        runner.admit("b", GREEDY, 12),
    ]
    runner.finish()
    assert [runner.tokens[row] for row in rows] == [*made, free]
