"""Text that arrives in pieces, for parsers that are written as if all of it was there.

The parsers' output is the parts of one answer: content, reasoning, and tool calls.
"""

import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lmx.protocol.messages.data import ToolCallPart
from lmx.protocol.states import DeltaKind

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields if it needs more text than has come; returns its result."""


def discard(_: str) -> None:
    """Ignore text that nobody wants."""


class TextFeed:
    """A buffer that is read from its front; every reader is a generator (:data:`Steps`).

    A reader passes nothing on before it is certain, so that results don't depend on how the text is
    cut. After ``mark`` the text that is read is kept; ``marked`` returns it.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False

    def add(self, text: str) -> None:
        """Add text at the end."""
        keep = self._at if self._mark is None else self._mark
        self._text = self._text[keep:] + text
        self._at -= keep
        if self._mark is not None:
            self._mark = 0

    @property
    def rest(self) -> str:
        """The text that has come and is not read yet."""
        return self._text[self._at :]

    @property
    def is_read(self) -> bool:
        """Whether all text that has come is read."""
        return self._at == len(self._text)

    def read(self, length: int) -> str:
        """Read ``length`` characters, which must have come."""
        self._at += length
        return self._text[self._at - length : self._at]

    def unread(self, length: int) -> None:
        """Put back the marker that was read last. Only that is certainly still in the buffer."""
        self._at -= length

    def mark(self, length: int = 0) -> None:
        """Keep the text from here on, or from ``length`` characters ago."""
        self._mark = self._at - length

    def unmark(self) -> None:
        """Keep no text any more."""
        self._mark = None

    def marked(self) -> str:
        """Return the text that was read since ``mark``, and keep it no longer; "" if there is no
        mark."""
        start, self._mark = self._mark, None
        return "" if start is None else self._text[start : self._at]

    def rewind(self) -> None:
        """Go back to the mark, and keep no text any more."""
        if self._mark is not None:
            self._at, self._mark = self._mark, None

    def char(self) -> Steps[str]:
        """Return the next character without reading it, "" at the end."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def peek(self, length: int) -> Steps[str]:
        """Return the next ``length`` characters without reading them, fewer at the end."""
        while len(self._text) - self._at < length and not self.ended:
            yield
        return self._text[self._at : self._at + length]

    def skip(self, characters: str | None = None) -> Steps[str]:
        """Read and return as many of these characters as come; None: white space."""
        skipped: list[str] = []
        while True:
            rest = self.rest
            skipped.append(self.read(len(rest) - len(rest.lstrip(characters))))
            if self._at < len(self._text) or self.ended:
                return "".join(skipped)
            yield

    def starts(self, markers: Sequence[str]) -> Steps[str | None]:
        """Read and return the marker that comes next; None if other text comes next."""
        while True:
            rest = self.rest
            for marker in markers:
                if rest.startswith(marker):
                    self._at += len(marker)
                    return marker
            if self.ended or not any(marker.startswith(rest) for marker in markers):
                return None
            yield

    def begins(self, texts: Sequence[str]) -> Steps[bool]:
        """Return whether one of these comes next, without reading it. At the end of the text its
        beginning is enough."""
        begun = yield from self.starts(texts)
        self.unread(len(begun or ""))
        cut_off = self.ended and any(text.startswith(self.rest) for text in texts)
        return begun is not None or cut_off

    def until(
        self, markers: Sequence[str], emit: Callable[[str], Any], whole: bool = True
    ) -> Steps[str | None]:
        """Pass the text before the first marker to ``emit``, piece by piece; read and return the
        marker.

        Returns None if the text ended. If several markers begin in one place, the longest counts.
        Without ``whole`` the beginning of a marker with which the text ends is not passed on.
        """
        # Most text contains none of the markers' first characters.
        heads = re.compile("[" + re.escape("".join({marker[0] for marker in markers})) + "]")
        while True:
            end, marker = len(self._text), ""
            if heads.search(self._text, self._at):
                end, marker = self._first(markers)
                if not (self.ended and whole):
                    begun = min(_beginning(self._text, self._at, marker) for marker in markers)
                    if begun <= end:
                        end, marker = begun, ""
            if end > self._at:
                emit(self._text[self._at : end])
                self._at = end
            if marker:
                self._at += len(marker)
                return marker
            if self.ended:
                self._at = len(self._text)
                return None
            yield

    def _first(self, markers: Sequence[str]) -> tuple[int, str]:
        best, best_marker = len(self._text), ""
        for marker in markers:
            at = self._text.find(marker, self._at)
            if at >= 0 and (at < best or (at == best and len(marker) > len(best_marker))):
                best, best_marker = at, marker
        return best, best_marker


def _beginning(text: str, start: int, marker: str) -> int:
    """Return where an incomplete ``marker`` begins at the end of ``text``, else its length."""
    size = len(text)
    at = text.find(marker[0], max(start, size - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return at
        at = text.find(marker[0], at + 1)
    return size


class Part(NamedTuple):
    """Text of one kind."""

    kind: DeltaKind
    text: str
    call: ToolCallPart | None = None
    """The tool call of which the text is an argument fragment."""


class PartSink:
    """Collects the parts of one answer and numbers its calls. It does not know how text is parsed.

    ``kind`` is the kind of the text at the present place: text that is held back because it may
    still be content (a JSON object that may be a call) counts as content. Without ``parallel``
    everything after the first call is dropped.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], parallel: bool) -> None:
        self._parallel = parallel
        self._dropping = False
        self.tools = [_plain(tool) for tool in tools]
        self.names = frozenset(tool["function"]["name"] for tool in self.tools)
        self.kind = DeltaKind.CONTENT
        self._index = -1
        self._parts: list[Part] = []
        # Those of the call that was begun last.
        self.last_arguments: list[str] = []
        self.write: Callable[[str], None] = self.content
        """Where a reader of calls puts text that is no call."""

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Return the schema of a tool's arguments; its ``properties`` are always there."""
        found = (one["function"] for one in self.tools if one["function"]["name"] == name)
        schema: Mapping[str, Any] = next(found)["parameters"]
        return schema

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._index + 1

    def content(self, text: str) -> None:
        """Add text for the reader."""
        self._add(DeltaKind.CONTENT, text)

    def reasoning(self, text: str) -> None:
        """Add text of the model's thinking."""
        self._add(DeltaKind.REASONING, text)

    def begin_call(self, name: str) -> None:
        """Begin the next call; its arguments follow by :meth:`arguments`."""
        self.kind = DeltaKind.TOOL_CALL
        if self._index >= 0 and not self._parallel:
            self._dropping = True
            return
        self._index += 1
        self.last_arguments.clear()
        call = ToolCallPart(self._index, f"call_{secrets.token_hex(12)}", name)
        self._parts.append(Part(DeltaKind.TOOL_CALL, "", call))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if not self._dropping:
            self.last_arguments.append(text)
        self._add(DeltaKind.TOOL_CALL, text, ToolCallPart(self._index))

    def next_parts(self) -> list[Part]:
        """Return the parts since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def _add(self, kind: DeltaKind, text: str, call: ToolCallPart | None = None) -> None:
        only_call = self._index >= 0 and not self._parallel
        if not text or self._dropping or (only_call and kind is not DeltaKind.TOOL_CALL):
            return
        part = Part(kind, text, call)
        # Nearly always it is the only one of its token.
        last = self._parts[-1] if self._parts else None
        if last is not None and last.kind is kind and _index(last) == _index(part):
            self._parts[-1] = last._replace(text=last.text + text)
        else:
            self._parts.append(part)


def _index(part: Part) -> int | None:
    return part.call.index if part.call else None


def _plain(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool with the fields that the family parsers read; not all parsers treat them as
    optional. A value that is no schema (``"properties": [1]``) is left out: it is checked only when
    it is enforced."""
    function = tool["function"]
    parameters = dict(function.get("parameters") or {})
    properties = parameters.get("properties")
    parameters["properties"] = dict(properties) if isinstance(properties, dict) else {}
    return {"type": "function", "function": {"name": function["name"], "parameters": parameters}}
