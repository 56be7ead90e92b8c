"""The parts of an answer that does not stream, collected until it is whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmx.protocol.data import Delta, TokenLogprob
from lmx.protocol.states import DeltaKind


@dataclass(slots=True)
class GatheredCall:
    """A tool call; ``arguments`` are the fragments of its JSON."""

    call_id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class GatheredChoice:
    """One choice. ``calls`` are in the order of their beginnings."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, GatheredCall] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Take the next piece."""
        if delta.call is not None:
            call = self.calls.setdefault(delta.call.index, GatheredCall())
            call.call_id = call.call_id or delta.call.call_id
            call.name = call.name or delta.call.name
            call.arguments.append(delta.text)
        elif delta.kind is DeltaKind.REASONING:
            self.reasoning.append(delta.text)
        else:
            self.content.append(delta.text)
            self.logprobs.extend(delta.logprobs)
