"""The variables with which a chat template controls thinking, and the words for an effort. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmx.protocol.messages.data import Thinking

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The words for a reasoning effort, the least first."""

# Qwen3, GLM, Gemma 4, SmolLM3 and others; DeepSeek V3.1, Granite, Kimi K2; Command A.
_SWITCHES: Final = ("enable_thinking", "thinking", "reasoning")
# gpt-oss and most others; Muse.
_EFFORTS: Final = ("reasoning_effort", "reasoning_strength")
# Seed-OSS. Its template writes how many tokens the thinking may have.
_BUDGET: Final = "thinking_budget"


def thinking_variables(thinking: Thinking) -> dict[str, Any]:
    """Return the variables that control thinking; a template ignores those it doesn't know."""
    variables: dict[str, Any] = {}
    effort, enabled = thinking.effort, thinking.enabled
    if effort is not None:
        variables |= dict.fromkeys(_EFFORTS, effort)
        enabled = True if enabled is None else enabled
    if enabled is not None:
        variables |= dict.fromkeys(_SWITCHES, enabled)
    if enabled is False:
        variables[_BUDGET] = 0
    elif thinking.budget_tokens is not None:
        variables[_BUDGET] = thinking.budget_tokens
    return variables


def earlier_thinking(messages: Sequence[Mapping[str, Any]], *, has_tools: bool) -> dict[str, Any]:
    """Return the variable with which a template that can (Qwen3.6, Gemma 4) shows the thinking of
    earlier turns, for an agent that sends it back.

    Left out, each turn would depart from the one before it: its answers would be computed again.
    """
    sent_back = has_tools and any(message.get("reasoning_content") for message in messages)
    return {"preserve_thinking": True} if sent_back else {}


def nearest_effort(asked: str, taken: Sequence[str]) -> str | None:
    """Return the one of the words ``taken`` that is nearest to ``asked``, the greater of two that
    are equally near.

    No effort but "none" becomes "none", because that switches the thinking off. None: no word of
    ``taken`` comes near. A word that is not of :data:`EFFORTS` is returned as it is.
    """
    if asked in taken or asked not in EFFORTS:
        return asked
    place = EFFORTS.index
    others = [word for word in taken if word != "none"]
    return min(
        others, key=lambda word: (abs(place(word) - place(asked)), -place(word)), default=None
    )
