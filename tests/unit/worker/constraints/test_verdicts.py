"""Which verdicts on grammars are kept."""

import math
from typing import Any

import pytest

from lmx.worker.constraints import compiler
from lmx.worker.constraints.probe import Verdict


@pytest.mark.parametrize(("counted", "asked"), [(True, 1), (False, 2)])
def test_what_the_clock_said_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, counted: bool, asked: int
) -> None:
    said: list[str] = []

    def verdict(grammars: str, vocabulary: object, **_: object) -> Verdict:
        said.append(grammars)
        return Verdict("too complex", counted)

    monkeypatch.setattr(compiler, "verdict", verdict)
    made: Any = object.__new__(compiler.ConstraintCompiler)
    monkeypatch.setattr(compiler.ConstraintCompiler, "_vocabulary", None)
    made._verdicts, made._until_s = {}, math.inf
    assert [made._verdict("{}"), made._verdict("{}")] == ["too complex"] * 2
    assert len(said) == asked
