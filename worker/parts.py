"""The parts of one answer: what is content, what is reasoning, what is a tool call."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmx.protocol.data import ToolCallPart
from lmx.protocol.states import DeltaKind


class Part(NamedTuple):
    """Text of one kind. ``call`` says which tool call the text is an argument fragment of."""

    kind: DeltaKind
    text: str
    call: ToolCallPart | None = None


class PartSink:
    """Collects the parts of one answer and numbers its calls.

    ``kind`` is where the text is now: text that is held back because it may still be content
    (a JSON object that may be a call) counts as content. Without ``parallel`` all is dropped
    that comes after the first call. Not concerned with how text is parsed.
    """

    __slots__ = ("_dropping", "_index", "_parallel", "_parts", "kind", "names", "tools")

    def __init__(self, tools: Sequence[Mapping[str, Any]], parallel: bool) -> None:
        self._parallel = parallel
        self._dropping = False
        self.tools = [_plain(tool) for tool in tools]
        self.names = frozenset(tool["function"]["name"] for tool in self.tools)
        self.kind = DeltaKind.CONTENT
        self._index = -1
        self._parts: list[Part] = []

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._index + 1

    def content(self, text: str) -> None:
        """Add text that is for the reader."""
        self._add(Part(DeltaKind.CONTENT, text))

    def reasoning(self, text: str) -> None:
        """Add text that the model thinks."""
        self._add(Part(DeltaKind.REASONING, text))

    def begin_call(self, name: str) -> None:
        """Begin the next call; ``arguments`` follow."""
        self.kind = DeltaKind.TOOL_CALL
        if self._index >= 0 and not self._parallel:
            self._dropping = True
            return
        self._index += 1
        call = ToolCallPart(self._index, f"call_{secrets.token_hex(12)}", name)
        self._parts.append(Part(DeltaKind.TOOL_CALL, "", call))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        self._add(Part(DeltaKind.TOOL_CALL, text, ToolCallPart(self._index)))

    def take(self) -> list[Part]:
        """Return what has come since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def _add(self, part: Part) -> None:
        only_call = self._index >= 0 and not self._parallel
        if not part.text or self._dropping or (only_call and part.kind is not DeltaKind.TOOL_CALL):
            return
        last = self._parts[-1] if self._parts else None
        if last is not None and last.kind is part.kind and _index(last) == _index(part):
            self._parts[-1] = last._replace(text=last.text + part.text)
        else:
            self._parts.append(part)


def _index(part: Part) -> int | None:
    return part.call.index if part.call else None


def _plain(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool with what the family parsers read, which not all take for optional. What
    is no schema (``"properties": [1]``) tells them nothing: it is checked only for enforcing."""
    function = tool["function"]
    parameters = dict(function.get("parameters") or {})
    properties = parameters.get("properties")
    parameters["properties"] = dict(properties) if isinstance(properties, dict) else {}
    return {
        "type": "function",
        "function": {"name": function["name"], "parameters": parameters},
    }
