"""What an OutputParser makes of a text, however it is cut."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.states import DeltaKind
from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.parser import OutputParser, Part

THINK = ReasoningMarkers("<think>", "</think>")


def tool(name: str, **types: Any) -> dict[str, Any]:
    """Return a tool whose parameters have these JSON types, or no `parameters` at all."""
    function: dict[str, Any] = {"name": name}
    if types:
        properties = {key: {"type": kind} for key, kind in types.items()}
        function["parameters"] = {"type": "object", "properties": properties}
    return {"type": "function", "function": function}


TOOLS = [
    tool("get_weather", city="string", days="integer"),
    tool("write-file", path="string", text="string", tags="array", options="object"),
    tool("now"),
]


@dataclass
class Parsed:
    """The joined parts. ``order``: the kinds as they came, each with its neighbours joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    fragments: list[Part] = field(default_factory=list)

    @property
    def objects(self) -> list[tuple[str, Any]]:
        """The calls, their arguments parsed: they must be an object."""
        result = [(name, json.loads(text)) for name, text in self.calls]
        assert all(isinstance(value, dict) for _, value in result)
        return result


def parse(
    text: str,
    tool_parser: str | None = None,
    *,
    reasoning: ReasoningMarkers | None = THINK,
    thinking_open: bool = False,
    tools: Sequence[dict[str, Any]] = tuple(TOOLS),
    parallel: bool = True,
    cuts: Sequence[int] | None = None,
    open_calls: bool = True,
    in_answer: bool = False,
) -> Parsed:
    """Parse ``text`` cut at these places; None: after every character.

    Arguments must be JSON, whatever the text is: only a call in which it ends may be without its
    end.
    """
    places = range(1, len(text)) if cuts is None else sorted(cuts)
    edges = [0, *places, len(text)]
    parser = OutputParser(
        reasoning,
        thinking_open,
        tool_parser,
        tools,
        parallel,
        open_calls=open_calls,
        in_answer=in_answer,
    )
    parts: list[Part] = []
    for start, end in itertools.pairwise(edges):
        parts += parser.add(text[start:end])
    in_call = parser.kind is DeltaKind.TOOL_CALL
    parts += parser.finish()
    parsed = join(parts)
    assert parser.called is bool(parsed.calls)
    for _, arguments in parsed.calls[: -1 if in_call else None]:
        assert isinstance(json.loads(arguments), dict)
    return parsed


def join(parts: Sequence[Part]) -> Parsed:
    """Join parts as a client does, and hold them to OpenAI's rules for deltas."""
    parsed = Parsed(fragments=list(parts))
    for part in parts:
        assert part.text or (part.call and part.call.name)
        if part.kind is DeltaKind.CONTENT:
            parsed.content += part.text
        elif part.kind is DeltaKind.REASONING:
            parsed.reasoning += part.text
        elif part.call is not None and part.call.name is not None:
            assert part.call.index == len(parsed.calls)
            assert re.fullmatch("call_[0-9a-f]{24}", part.call.call_id or "")
            parsed.calls.append((part.call.name, part.text))
        else:
            assert part.call is not None
            assert part.call.call_id is None
            assert part.call.index == len(parsed.calls) - 1
            name, text = parsed.calls[-1]
            parsed.calls[-1] = (name, text + part.text)
        label = f"call {part.call.index}" if part.call else str(part.kind)
        if not parsed.order or parsed.order[-1] != label:
            parsed.order.append(label)
    return parsed
