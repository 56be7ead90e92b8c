"""Which model a program of `lmx launch` gets."""

from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.launch.choice import choose, named
from lmx.supervisor.cli.launch.programs import PROGRAMS

CLAUDE = PROGRAMS["claude"]
"""It needs 65,536 tokens."""


def model(name: str, context: int | None = 131_072, **fields: Any) -> dict[str, Any]:
    return {
        "id": name, "kind": "chat", "state": "cold", "context_length": context,
        "capabilities": ["tools", "reasoning"], "modalities": ["text", "image"], **fields,
    }  # fmt: skip


def unknown(_model: str) -> None:
    """The longest context of any model."""


READY: dict[str, Any] = {"state": "ready"}


@pytest.mark.parametrize(
    ("models", "default", "expected"),
    [
        ([model("a"), model("b")], None, "a"),
        ([model("a"), model("b", **READY)], None, "b"),
        ([model("a"), model("b", **READY), model("c")], "c", "c"),
        ([model("a"), model("b", 32_768, **READY)], "b", "a"),
        ([model("a", capabilities=["completion"], **READY), model("b")], "a", "b"),
        ([model("e", kind="embedding", **READY), model("b", kind=None)], "e", "b"),
        # Of what was never loaded nothing may be known: it is better than none.
        ([model("a", None, capabilities=[]), model("b", 4096)], None, "a"),
        ([model("a", None), model("b")], None, "b"),
        ([model("a", state="failed"), model("b")], "a", "b"),
        ([model("a", state="drained")], None, "a"),
    ],
)
def test_the_best_that_has_what_is_needed(
    models: list[dict[str, Any]], default: str | None, expected: str
) -> None:
    assert choose(CLAUDE, models, default, unknown).name == expected


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], ["lmx pull"]),
        ([model("e", kind="embedding")], ["lmx pull"]),
        ([model("a", capabilities=["completion"])], ["calls tools", "(a)", "--model"]),
        (
            [model("a", 4096), model("b", 32_768)],
            ["Claude Code needs a context of 65,536", "b has the longest, 32,768",
             "lmx load b --context-length 65536", "`context_length: 65536`"],
        ),
    ],
)  # fmt: skip
def test_without_one_it_says_what_to_do(models: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(OperationError) as caught:
        choose(CLAUDE, models, None, unknown)
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("longest", "advice"),
    [(40_960, "it can have 40,960 at most"), (65_536, "lmx load b --context-length 65536")],
)
def test_a_context_that_the_model_can_t_have_is_not_advised(longest: int, advice: str) -> None:
    with pytest.raises(OperationError, match=advice):
        choose(CLAUDE, [model("b", 32_768)], None, {"b": longest}.get)


def test_one_that_is_named_is_taken_with_warnings() -> None:
    good = named(CLAUDE, "fast", model("a"), unknown)
    assert (good.name, good.context_tokens, good.warnings) == ("fast", 131_072, ())
    assert (good.images, good.reasoning) == (True, True)
    short = named(CLAUDE, "a", model("a", 4096, capabilities=["completion"]), unknown)
    assert short.context_tokens == 4096
    assert "call tools" in short.warnings[0] and "a has 4,096" in short.warnings[1]
    with pytest.raises(OperationError) as caught:
        named(CLAUDE, "e", model("e", kind="embedding"), unknown)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VALUE
