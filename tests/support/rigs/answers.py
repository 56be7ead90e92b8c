"""An answer as a worker sends it, and what a family's writer makes of it."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from lmx.protocol.messages.data import ChoiceEnded, Delta, Finished, Timings, ToolCallPart, Usage
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.rendering.answer_format import AnswerFormat, Beginning, Ending
from lmx.router.rendering.envelope import Identity, RouterTimings

ENDING = Ending(Finished(1, Usage(9, 4, 2, 1), Timings(0.1, 0.2, 0.5)), RouterTimings(1.0, 0.5, 0))


def say(text: str) -> Delta:
    return Delta(1, text, 1)


def think(text: str) -> Delta:
    return Delta(1, text, 1, kind=DeltaKind.REASONING)


def call(index: int, *arguments: str, name: int | None = None) -> list[Delta]:
    """A call of the tool ``f<name>``, whose arguments come in these pieces."""
    begin = ToolCallPart(index, f"call_{index}", f"f{index if name is None else name}")
    parts = [begin, *[ToolCallPart(index)] * len(arguments)]
    return [
        Delta(1, text, 1, kind=DeltaKind.TOOL_CALL, call=part)
        for part, text in zip(parts, ("", *arguments), strict=True)
    ]


def ended(reason: FinishReason = FinishReason.STOP, stop: str | None = None) -> ChoiceEnded:
    return ChoiceEnded(1, 0, reason, stop)


def stream_of(
    answer: AnswerFormat,
    identity: Identity,
    deltas: list[Delta],
    end: ChoiceEnded,
    sizes: list[int],
) -> bytes:
    """All of a stream, with the deltas in batches of these sizes."""
    writer = answer.writer(identity, Beginning(9))
    raw, left = writer.first(), iter(deltas)
    for size in [*sizes, len(deltas)]:
        raw += writer.deltas(list(itertools.islice(left, size)))
    return raw + b"".join(writer.ends([end])) + writer.last(ENDING)


def named_events(raw: bytes) -> Iterator[dict[str, Any]]:
    """The data of events whose names are the types of their data."""
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        value: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        yield value
