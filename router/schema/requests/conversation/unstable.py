"""Leaves out of prompts what differs in each request of a session and says nothing of it, so that
what follows is found in the prefix cache (``server.stable_prompts``). Pure.

Only what the system says is changed: a line of a user or of a tool stays as it is in the next
request too.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from lmx.protocol.messages.specs import StablePrompts

_BILLING: Final = "x-anthropic-billing-header:"
# Neither begins with spaces of any number: looking for those takes the square of a text's length.
_TOKENS_LEFT: Final = re.compile(
    r"<total_tokens>[^<\n]{0,80}</total_tokens>"
    r"|<system_warning>\s?token usage:[^<\n]{0,80}</system_warning>",
    re.IGNORECASE,
)
_TIME: Final = re.compile(
    r"(?:[ \t]|(?<=\d)T|(?<![\w:.]))\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?:[ \t]?[AP]M|Z|[+-]\d\d:?\d\d)?(?![\w:])",
    re.IGNORECASE,
)


def stable_messages(
    messages: Sequence[dict[str, Any]], rules: Collection[StablePrompts]
) -> tuple[Sequence[dict[str, Any]], list[str]]:
    """Return the messages without what ``rules`` name, and the names of what was left out, as a
    header has them."""
    names: dict[str, None] = {}
    shown: list[dict[str, Any]] = []
    wanted = [rule for rule in _RULES if rule in rules]
    for message in messages:
        if message["role"] not in ("system", "developer"):
            shown.append(message)
            continue
        content = message["content"]
        for rule in wanted:
            changed = _changed(content, _RULES[rule])
            if changed != content:
                names[f"system.{rule}"] = None
                content = changed
        # Only the first of them begins with the line of billing.
        wanted = [rule for rule in wanted if rule is not StablePrompts.BILLING_HEADER]
        if content or not message["content"]:
            shown.append({**message, "content": content})
    if not names or not shown:
        return messages, []
    return shown, list(names)


def stable_tools(
    tools: tuple[dict[str, Any], ...], rules: Collection[StablePrompts]
) -> tuple[dict[str, Any], ...] | None:
    """Return the tools in the order of their names; None if they have it, or keep their own."""
    if StablePrompts.TOOL_ORDER not in rules:
        return None
    ordered = tuple(sorted(tools, key=lambda tool: str(tool["function"]["name"])))
    return None if ordered == tools else ordered


def _changed(content: Any, change: Callable[[str], str]) -> Any:
    """Return a message's content with its texts changed, without those that are empty then."""
    if isinstance(content, str):
        return change(content)
    parts = []
    for part in content:
        if part.get("type") != "text":
            parts.append(part)
        elif (text := change(part["text"])) or not part["text"]:
            parts.append({**part, "text": text})
    return parts


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


_RULES: Final[Mapping[StablePrompts, Callable[[str], str]]] = {
    StablePrompts.BILLING_HEADER: _without_billing,
    StablePrompts.TOKENS_LEFT: lambda text: _TOKENS_LEFT.sub("", text),
    StablePrompts.TIMES: lambda text: _TIME.sub("", text),
}
