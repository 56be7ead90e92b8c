"""What a model is said to be capable of is what requests may use of it."""

from typing import Any

import pytest

from lmx.worker.engine.values import ModelFacts, ReasoningMarkers, capabilities

THINKS = ReasoningMarkers("<think>", "</think>")


@pytest.mark.parametrize(
    ("facts", "reported"),
    [
        ({}, ()),
        ({"grammars": True}, ("structured_outputs",)),
        ({"converses": True, "grammars": True}, ("tools", "structured_outputs")),
        (
            {"converses": True, "grammars": True, "tool_parser": "mistral", "reasoning": THINKS},
            ("tools", "native_tools", "structured_outputs", "reasoning"),
        ),
        ({"converses": True, "tool_parser": "mistral"}, ("tools", "native_tools")),
        ({"grammars": True, "infills": True}, ("structured_outputs", "infill")),
        # A base model whose configuration names a form of calls can't be told of any.
        ({"tool_parser": "mistral"}, ()),
    ],
)
def test_capabilities(facts: dict[str, Any], reported: tuple[str, ...]) -> None:
    assert capabilities(ModelFacts(100, frozenset(), 10, **facts)) == reported
