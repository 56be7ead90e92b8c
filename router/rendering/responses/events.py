"""OpenAI's responses, whole and as a stream of events. Pure.

Source: the "Streaming events" pages of the documentation of OpenAI's Responses API.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from pydantic import Field

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.responses import Answer
from lmx.router.rendering.accumulator import AccumulatedChoice
from lmx.router.rendering.answer_format import Beginning, Ending, Generated
from lmx.router.rendering.envelope import Identity
from lmx.router.rendering.logprobs import chat_entries, event_entries
from lmx.router.rendering.responses.items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    ChosenToken,
    ItemForm,
    ItemStatus,
    OutputItem,
    OutputText,
    ThoughtText,
    text_part,
    thought_part,
)
from lmx.router.rendering.responses.state import (
    ResponseObject,
    ResponseState,
    ended,
    failed,
    under_way,
)
from lmx.router.rendering.responses.tools import InputReader

_MESSAGE: Final = DeltaKind.CONTENT
_REASONING: Final = DeltaKind.REASONING
_CALL: Final = DeltaKind.TOOL_CALL


class StreamEvent(Answer):
    """What all events have."""

    sequence_number: int
    """The event's place in the stream, from 0."""


class ItemPieceEvent(StreamEvent):
    """What the events of a piece of an item have."""

    item_id: str
    output_index: int


class ResponseEvent(StreamEvent):
    """The response, at its beginning and at its end."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class ItemEvent(StreamEvent):
    """An item begins, or is whole."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    """The item's place in the output, from 0."""
    item: OutputItem


class PartEvent(ItemPieceEvent):
    """A part of an item begins, or is whole."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText | ThoughtText


class SummaryPartEvent(ItemPieceEvent):
    """The same for thoughts that were requested as a summary."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: int
    part: ThoughtText


class OutputTextDelta(ItemPieceEvent):
    """More of a text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[ChosenToken]
    """The tokens that end in it, if they were requested."""


class OutputTextDone(ItemPieceEvent):
    """A text is whole."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[ChosenToken]


class ThoughtDelta(ItemPieceEvent):
    """More of what the model thinks."""

    type: Literal["response.reasoning_text.delta", "response.reasoning_summary_text.delta"]
    content_index: NotRequired[int | None]
    summary_index: NotRequired[int | None]
    """It is there in the place of `content_index` where a summary was requested."""
    delta: str


class ThoughtDone(ItemPieceEvent):
    """Thoughts are whole."""

    type: Literal["response.reasoning_text.done", "response.reasoning_summary_text.done"]
    content_index: NotRequired[int | None]
    summary_index: NotRequired[int | None]
    text: str


class CallDelta(ItemPieceEvent):
    """More of what a function, or a custom tool, is given."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ArgumentsDone(ItemPieceEvent):
    """A function's arguments are whole."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str


class InputDone(ItemPieceEvent):
    """A custom tool's input is whole."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorEvent(StreamEvent):
    """The only event of a response that could not begin, because its model could not."""

    type: Literal["error"]
    code: str
    message: str
    param: str | None


ResponseStreamEvent = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | SummaryPartEvent
    | OutputTextDelta
    | OutputTextDone
    | ThoughtDelta
    | ThoughtDone
    | CallDelta
    | ArgumentsDone
    | InputDone
    | ErrorEvent,
    Field(discriminator="type"),
]


class ResponseWriter:
    """Writes the events of one stream. See :class:`lmx.router.rendering.answer_format.EventWriter`.

    What is the same in all deltas of an item is encoded once. Items begin with their first piece,
    and end with the first piece of the next one.
    """

    def __init__(
        self, identity: Identity, head: Mapping[str, Any], beginning: Beginning, items: ItemForm
    ) -> None:
        self._identity = identity
        self._head = b'"response":' + orjson.dumps(head)[:-1] + b","
        self._beginning = beginning
        self._items = items
        self._number = 0
        """The number of the next event."""
        self._done: list[bytes] = []
        """The items that are over, as JSON."""
        self._kind: DeltaKind | None = None
        """That of the open item; None while none is open."""
        self._call: int | None = None
        self._call_id: str | None = None
        self._name: str | None = None
        """Those of the open item's call, and the name that its worker knows it by."""
        self._reader: InputReader | None = None
        """Reads the input of the open item's custom tool."""
        self._pieces: list[str] = []
        """The text of the open item."""
        self._logprobs: list[Any] = []
        self._event_logprobs: list[Any] = []
        """Those of the open item, as items have them and as events do."""
        self._before = self._after = b""
        """What is around the text of each of the open item's deltas."""
        self._end: ChoiceEnded | None = None

    def first(self) -> bytes:
        """Return that the response exists, and that it is under way."""
        state = under_way()
        return self._response("response.created", state) + self._response(
            "response.in_progress", state
        )

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        pieces: list[bytes] = []
        for delta in deltas:
            call, text = delta.call, delta.text
            if not text and call is None and not delta.logprobs:
                continue
            kind = delta.kind if call is None else _CALL
            if kind is not self._kind or (call is not None and call.index != self._call):
                pieces += [*self._close(COMPLETED), self._open(kind, delta)]
            if self._reader is not None:
                text = self._reader.read(text)
            if delta.logprobs:
                pieces.append(self._with_logprobs(delta))
            elif text:
                self._pieces.append(text)
                number = str(self._number).encode()
                pieces += (self._before, orjson.dumps(text), self._after, number, b"}\n\n")
                self._number += 1
        return b"".join(pieces)

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield the end of the open item."""
        self._end = ended[0]
        is_cut = self._end.reason is FinishReason.LENGTH
        yield from self._close(INCOMPLETE if is_cut else COMPLETED)

    def last(self, ending: Ending) -> bytes:
        """Return the whole response."""
        assert self._end is not None
        state = ended(self._identity, self._beginning, self._end, ending)
        return self._response(f"response.{state['status']}", state)

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        """Return the response until now, and why it failed."""
        if self._kind is not None:
            self._done.append(orjson.dumps(self._item(INCOMPLETE)))
            self._kind = None
        return self._response("response.failed", failed(error))

    def _whole_item(self, item: OutputItem) -> bytes:
        """Return the events of an item that begins and ends at once."""
        place, raw = len(self._done), orjson.dumps(item)
        fields = {"output_index": place, "item": orjson.Fragment(raw)}
        events = [self._event(f"response.output_item.{what}", fields) for what in ("added", "done")]
        self._done.append(raw)
        return b"".join(events)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": len(self._done)}

    def _open(self, kind: DeltaKind, delta: Delta) -> bytes:
        self._kind = kind
        self._pieces, self._logprobs, self._event_logprobs = [], [], []
        self._call = self._call_id = self._name = self._reader = None
        if delta.call is not None:
            self._call, self._call_id = delta.call.index, delta.call.call_id
            self._name = delta.call.name
            self._reader = InputReader() if self._items.tool(self._name).custom else None
        item = self._item(IN_PROGRESS)
        self._item_id: str = item["id"]
        added = self._event(
            "response.output_item.added", {"output_index": len(self._done), "item": item}
        )
        name, place = self._delta_name(), {**self._place, **self._index()}
        fields = orjson.dumps({"type": name, **place})[:-1]
        self._before = b"event: " + name.encode() + b"\ndata: " + fields + b',"delta":'
        self._after = b',"sequence_number":'
        if kind is _MESSAGE:
            self._after = b',"logprobs":[]' + self._after
        return added + self._part("added", "")

    def _close(self, status: ItemStatus) -> Iterator[bytes]:
        if self._kind is None:
            return
        if self._reader is not None and (rest := self._reader.end()):
            self._pieces.append(rest)
            fields = {**self._place, **self._index(), "delta": rest}
            yield self._event(self._delta_name(), fields)
        text = "".join(self._pieces)
        yield self._text_done(text)
        yield self._part("done", text)
        item = orjson.dumps(self._item(status))
        fields = {"output_index": len(self._done), "item": orjson.Fragment(item)}
        yield self._event("response.output_item.done", fields)
        self._done.append(item)
        self._kind = None

    def _item(self, status: ItemStatus) -> OutputItem:
        response_id, index = self._identity.completion_id, len(self._done)
        text = "".join(self._pieces)
        if self._kind is _REASONING:
            return self._items.reasoning(response_id, index, text, status)
        if self._kind is _CALL:
            return self._items.call(response_id, index, self._call_id, self._name, text, status)
        return self._items.message(response_id, index, text, self._logprobs, status)

    def _delta_name(self) -> str:
        if self._kind is _REASONING:
            kind = "reasoning_summary_text" if self._items.summarizes else "reasoning_text"
        elif self._kind is _CALL:
            kind = "custom_tool_call_input" if self._reader else "function_call_arguments"
        else:
            kind = "output_text"
        return f"response.{kind}.delta"

    def _index(self) -> dict[str, int]:
        if self._kind is _CALL:
            return {}
        is_summary = self._kind is _REASONING and self._items.summarizes
        return {"summary_index" if is_summary else "content_index": 0}

    def _part(self, what: str, text: str) -> bytes:
        """Return the event that a part was added, or is done. Calls have no parts."""
        if self._kind is _CALL:
            return b""
        summarizes = self._kind is _REASONING and self._items.summarizes
        part: OutputText | ThoughtText = text_part(text, self._logprobs)
        if self._kind is _REASONING:
            part = thought_part(text, summarizes=self._items.summarizes)
        kind = "reasoning_summary_part" if summarizes else "content_part"
        return self._event(
            f"response.{kind}.{what}", {**self._place, **self._index(), "part": part}
        )

    def _text_done(self, text: str) -> bytes:
        fields: dict[str, Any] = {**self._place, **self._index()}
        if self._kind is _CALL:
            fields["input" if self._reader else "arguments"] = text
        else:
            fields["text"] = text
        if self._kind is _MESSAGE:
            fields["logprobs"] = self._event_logprobs
        name = self._delta_name().removesuffix("delta") + "done"
        return self._event(name, fields)

    def _with_logprobs(self, delta: Delta) -> bytes:
        self._pieces.append(delta.text)
        self._logprobs += chat_entries(delta.logprobs)
        shown = event_entries(delta.logprobs)
        self._event_logprobs += shown
        fields = {**self._place, **self._index(), "delta": delta.text, "logprobs": shown}
        return self._event("response.output_text.delta", fields)

    def _response(self, name: str, state: ResponseState) -> bytes:
        shown, number = name.encode(), str(self._number).encode()
        self._number += 1
        # One copy of what may have megabytes.
        output = [piece for item in self._done for piece in (b",", item)][1:]
        return b"".join((
            b"event: ", shown, b'\ndata: {"type":"', shown, b'",', self._head,
            b'"output":[', *output, b"],", orjson.dumps(state)[1:],
            b',"sequence_number":', number, b"}\n\n",
        ))  # fmt: skip

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": name, **fields, "sequence_number": self._number})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _entries(_: int, tokens: Sequence[TokenLogprob]) -> list[Any]:
    return chat_entries(tokens)


class ResponseAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    ``asked`` are the fields of the request that a response repeats.
    """

    choices: Final = 1

    def __init__(self, asked: Mapping[str, Any], items: ItemForm, *, logprobs: bool) -> None:
        self._asked = asked
        self._items = items
        self.retained_logprobs: Final = _entries if logprobs else None

    def writer(self, identity: Identity, beginning: Beginning) -> ResponseWriter:
        return ResponseWriter(identity, self._head(identity), beginning, self._items)

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        """Return the whole response, or the part that exists until now, which is in progress."""
        identity, end = made.identity, made.ends.get(0)
        output = list(self._output(identity.completion_id, made.choices[0], end))
        if end is None or made.ending is None:
            state = under_way()
        else:
            state = ended(identity, made.beginning, end, made.ending)
        return {**self._head(identity), "output": output, **state}

    def stored_output(
        self, response_id: str, made: AccumulatedChoice, end: ChoiceEnded | None
    ) -> bytes:
        """Return the items as JSON, without logprobs: what continues the response does not read
        them, and they may be a hundred times the text."""
        return orjson.dumps(list(self._output(response_id, made, end, logprobs=False)))

    def _head(self, identity: Identity) -> dict[str, Any]:
        return {
            "id": identity.completion_id,
            "object": "response",
            "created_at": identity.created_s,
            "model": identity.model_id,
            **self._asked,
        }

    def _output(
        self,
        response_id: str,
        made: AccumulatedChoice,
        end: ChoiceEnded | None,
        *,
        logprobs: bool = True,
    ) -> Iterator[OutputItem]:
        is_cut = end is None or end.reason is FinishReason.LENGTH
        parts = list(made.parts())
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            status: ItemStatus = INCOMPLETE if is_cut and is_last else COMPLETED
            if part.call is not None:
                call = part.call
                given = self._items.given(call.name, part.text)
                yield self._items.call(response_id, index, call.call_id, call.name, given, status)
            elif part.kind is DeltaKind.REASONING:
                yield self._items.reasoning(response_id, index, part.text, status)
            else:
                shown = part.logprobs if logprobs else ()
                yield self._items.message(response_id, index, part.text, shown, status)
