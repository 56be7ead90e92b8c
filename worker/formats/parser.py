"""Separates one answer's text into content, reasoning and tool calls as it arrives."""

import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from lmx.protocol.states import DeltaKind
from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.families.table import call_forms, family_of
from lmx.worker.formats.family import CallForm, MessageForm, Reader
from lmx.worker.text.feed import Part, PartSink, Steps, TextFeed

__all__ = ["OutputParser", "Part"]

log = structlog.get_logger()

_BREAKS: Final = "\r\n"
_PROSE: Final = re.compile(
    r"""(?!\s*```)[`'"]?[\s.,;:!?)]*(?:[`*(]|[^\W\d_]+[,.;:]?\s+[^\W\d_]+[\s,.;:!?)`'"])"""
)
"""What follows a marker where no call does: a closing backtick, or two words. Names have no spaces
in them."""
_LINE_CHARACTERS: Final = 2_000
"""As much of a text's last line is looked at for quotes."""
_NAME_CHARACTERS: Final = f"{string.ascii_letters}{string.digits}_.-"
_QUOTES: Final = ("`", '"', "'")
_APOSTROPHE: Final = re.compile(r"(?<=\w)'(?=\w)")


class OutputParser:
    """Splits text that comes in pieces; the joined parts don't depend on how the text is cut.

    Reasoning is the text between the model's two markers; without an end marker it extends to the
    end of the text. Once there is content behind a thought, the markers are content too, until a
    call: an answer may be about them. ``thinking_closed`` means that the prompt has ended a thought
    already. A marker in quotes is a part of the text around it. Line breaks right inside the
    markers, and between the last marker and the content, are dropped: models write them around the
    markers, not for the reader. An end marker without a start marker is dropped, and so are the
    markers around an answer that follows the thinking. If the markers are words, only an answer
    that begins with them begins with reasoning.

    The parser looks for calls only with ``tools``. Arguments come in fragments if the form allows
    it, otherwise whole. White space before, after and between calls is dropped, except before
    further content. A call that the end of the text cuts off is dropped, except for the part that
    was passed on already. A malformed call, or one of an unknown tool, becomes content, with its
    markers; if its arguments go wrong only after their beginning was passed on, they are closed so
    that they are JSON, and the rest is content. Calls in a thought are a part of it, unless nothing
    follows them and the thought has no end: the model forgot it (``open_calls``). Without
    ``parallel`` everything after the first call is dropped. If the family writes such calls,
    content may also begin with calls without markers: JSON or Python, bare or fenced, that names
    one of the tools.

    With ``calls_only``, which is used if a grammar enforces a call, there is no content: text that
    is neither reasoning nor a call is a call that was cut off, or the end of the answer. A first
    call that was cut off before its name is one of ``only``, the single tool that may be called,
    without arguments; if several may be, its text is content after all, without the header of a
    message. ``either`` means that an answer is content or calls, and that everything after calls is
    dropped. With ``marked_calls`` there are no calls without markers. ``in_answer`` means that the
    prompt ends inside the text of the answer, behind the header that a family may put before it.
    """

    def __init__(
        self,
        reasoning: ReasoningMarkers | None,
        thinking_open: bool,
        tool_parser: str | None,
        tools: Sequence[Mapping[str, Any]],
        parallel: bool = True,
        calls_only: bool = False,
        only: str | None = None,
        either: bool = False,
        marked_calls: bool = False,
        open_calls: bool = True,
        thinking_closed: bool = False,
        in_answer: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._parallel = parallel
        self._calls_only = calls_only
        self._only = only
        # The whole text, until a call has begun that has to be made.
        self._unnamed: list[str] = []
        self._either = either
        self._feed = TextFeed()
        self._sink = PartSink(tools, parallel)
        # The forms of calls by the markers that begin them, the markers that end them, and all
        # markers, those of the thinking included.
        self._forms: dict[str, CallForm] = {}
        self._ends: set[str] = set()
        self._markers: Sequence[str] = ()
        self._sink.write = self._write
        family = family_of(tool_parser, reasoning)
        self._messages = family.messages
        self._has_channels = family.answer is not None
        self._read_bare: Reader | None = None if marked_calls or not tools else family.read_bare
        self._space = ""
        self._holds_space = False
        # The marker behind the answer, and white space: no part of it if nothing else follows.
        self._tail = ""
        self._trim = False
        self._wrote = False
        # The end of the content's last line.
        self._line = ""
        # Whether a thought has ended, and whether content has followed it since the last call.
        self._thought, self._answering = thinking_closed, False
        # Whether the answer behind the thinking was opened by a marker.
        self._opened = False
        self._after_call = False
        # What reads the calls at the end of a thought.
        self._open_calls = partial(OutputParser, None, False, tool_parser, tools, parallel)
        self._tries_calls = bool(tools) and open_calls
        self._kept_end = ""
        self._steps: Steps[None] | None = None
        if family.answer is not None:
            self._steps = family.answer.read(self._feed, self._sink, thinking_open, in_answer)
        elif reasoning or tools or family.messages:
            forms = call_forms(family) if tools else ()
            self._forms = {form.start: form for form in forms}
            self._ends = {form.end for form in forms}
            thinking: tuple[str, ...] = ()
            if reasoning is not None:
                thinking = (reasoning.start, reasoning.end, *reasoning.answer)
            if (messages := family.messages) is not None:
                # A thought begins with a whole header.
                others = [one for one in thinking if one != messages.thinking.start]
                thinking = (messages.start, *messages.ends, *others)
            self._markers = [one for one in (*thinking, *self._forms, *self._ends) if one]
            self._holds_space = bool(tools)
            self._steps = self._read(thinking_open)
        self._advance()

    @property
    def kind(self) -> DeltaKind:
        """The kind of the text at the present place. Text that is held back and may still be
        content counts as content."""
        if self._calls_only and self._sink.kind is DeltaKind.CONTENT:
            return DeltaKind.TOOL_CALL
        return self._sink.kind

    @property
    def undecided(self) -> bool:
        """Whether text is held back that may be the beginning of a marker."""
        return not self._feed.is_read

    @property
    def called(self) -> bool:
        """Whether a tool call was made, or at least begun."""
        return self._sink.calls > 0

    @property
    def is_whole(self) -> bool:
        """Whether the arguments of the last call are whole."""
        return _is_json("".join(self._sink.last_arguments))

    @property
    def satisfied(self) -> bool:
        """Whether no more text is wanted: the only call that is allowed is complete."""
        return not self._parallel and self._sink.calls > 0 and self._sink.kind is DeltaKind.CONTENT

    def add(self, text: str) -> list[Part]:
        """Return the parts that became certain with this text."""
        if self._steps is None:
            return [Part(DeltaKind.CONTENT, text)] if text else []
        self._feed.add(text)
        next(self._steps, None)
        parts = self._parts()
        if self._calls_only and not self.called:
            self._unnamed.append(text)
        return parts

    def finish(self) -> list[Part]:
        """Return the rest. Called once, at the end of the text."""
        thinks = self._sink.kind is DeltaKind.REASONING
        self._feed.ended = True
        self._advance()
        parts = self._parts()
        if self._calls_only and not self.called and not thinks:
            parts += self._cut_off_call()
        return parts

    def _cut_off_call(self) -> list[Part]:
        text = "".join(self._unnamed)
        if self._reasoning is not None:
            text = text.rpartition(self._reasoning.end)[2]
        if not text.strip():
            return []
        if self._only is not None:
            self._sink.begin_call(self._only)
            return self._sink.next_parts()
        opening: tuple[str, ...] = ()
        if (messages := self._messages) is not None:
            text = text.rpartition(messages.body)[2]
            opening = (messages.start, messages.recipient)
        # A header is no text for a reader.
        is_header = (
            self._has_channels
            or text.lstrip().startswith(opening)
            or any(one.startswith(text.strip()) for one in opening)
        )
        return [] if is_header or not text.strip() else [Part(DeltaKind.CONTENT, text)]

    def _parts(self) -> list[Part]:
        parts = self._sink.next_parts()
        if self._calls_only or (self._either and self.called):
            return [part for part in parts if part.kind is not DeltaKind.CONTENT]
        return parts

    def _advance(self) -> None:
        if self._steps is not None:
            next(self._steps, None)

    def _read(self, thinking_open: bool) -> Steps[None]:
        if thinking_open and self._reasoning:
            yield from self._think(self._reasoning)
        if self._messages is not None:
            yield from self._read_headers(self._messages)
        while True:
            if self._read_bare is not None and not self._wrote:
                yield from self._bare_calls(self._read_bare)
            marker = yield from self._feed.until(self._markers, self._write)
            if marker is None:
                break
            if self._messages is not None and marker in (
                self._messages.start,
                *self._messages.ends,
            ):
                self._feed.unread(len(marker))
                yield from self._read_headers(self._messages)
            elif (yield from self._is_quoted(marker)):
                self._write(marker)
            elif self._reasoning and marker == self._reasoning.start and self._may_think:
                self._space = ""
                yield from self._think(self._reasoning)
            elif marker in self._forms:
                yield from self._read_calls(self._forms[marker])
            else:
                self._pass_marker(marker)
        if not self._after_call and not self._tail:
            self._sink.content(self._space)

    def _read_headers(self, form: MessageForm) -> Steps[None]:
        """Read what is between the texts of two messages, and the messages that are thoughts."""
        feed = self._feed
        while True:
            feed.mark()
            marker: str | None = form.ends[0]
            space = ""
            while marker in form.ends:
                space = yield from feed.skip()
                marker = yield from feed.starts((*form.ends, form.start, form.recipient))
            header = marker or ""
            if marker == form.start:
                # Only the first header begins with its recipient.
                header += yield from feed.skip(_NAME_CHARACTERS)
                header += (yield from feed.starts((f" {form.recipient}",))) or ""
            if header.endswith(form.recipient):
                header += yield from feed.skip(_NAME_CHARACTERS)
            if marker is None or (yield from feed.starts((form.body,))) is None:
                text, rest = feed.marked(), feed.rest
                if feed.ended and self._in_header(form, space, header + rest):
                    feed.read(len(rest))
                else:
                    self._write(text)
                return
            feed.unmark()
            if not (header + form.body).endswith(form.thinking.start):
                self._trim = True
                return
            yield from self._think(form.thinking)

    def _in_header(self, form: MessageForm, space: str, text: str) -> bool:
        """Return whether an answer that ends with ``text``, between two messages and behind
        ``space``, was cut off in a header, or before it."""
        opening = f" {form.recipient}"
        if text.startswith(form.start):
            text = text.removeprefix(form.start)
            opening = form.role + opening
        elif space and not self._wrote:
            text = f" {text}"
        name = text.removeprefix(opening)
        return opening.startswith(text) or (name != text and not name.strip(_NAME_CHARACTERS))

    def _pass_marker(self, marker: str) -> None:
        """Handle a marker with which neither a thought nor a call begins: it opens or closes the
        answer behind the thinking, is content, or is dropped."""
        opening, closing = self._reasoning.answer if self._reasoning else ("", "")
        # Without a thought before it, a tag may be what the answer is about.
        opens = self._thought or opening.startswith("<|")
        if marker == opening and opens and not self._wrote:
            self._trim = self._holds_space = self._opened = True
        elif marker == closing and self._opened:
            tail, self._tail = self._tail, ""
            if tail:
                self._write(tail)
            self._tail, self._space = self._space + marker, ""
        elif marker in self._ends:
            if marker == self._kept_end or not self.called:
                self._kept_end = ""
                self._write(marker)
        elif self._reasoning is None or marker in (opening, closing) or not self._may_think:
            self._write(marker)

    @property
    def _may_think(self) -> bool:
        """Whether a marker of the thinking is one here, and not a part of the content."""
        assert self._reasoning is not None
        # An answer whose form is enforced can only begin with a thought.
        only_first = self._reasoning.only_first or self._either
        return not (self._answering or (only_first and self._wrote))

    def _is_quoted(self, marker: str) -> Steps[bool]:
        """Return whether the content has this marker of the thinking in quotes."""
        if self._reasoning is None or marker not in (self._reasoning.start, self._reasoning.end):
            return False
        quote = _open_quote(self._line)
        return bool(quote) and (yield from self._feed.char()) == quote

    def _think(self, markers: ReasoningMarkers) -> Steps[bool]:
        """Read from after the start marker until after the end marker. Returns whether there is
        one."""
        thought = _Thought(self._sink.reasoning)
        trial: _Trial | None = None
        starts = self._forms if self._tries_calls else {}

        def emit(text: str) -> None:
            nonlocal trial
            if trial is not None and trial.add(text):
                return
            thought.add(trial.text if trial is not None else text)
            trial = None

        self._sink.kind = DeltaKind.REASONING
        while True:
            marker = yield from self._feed.until((markers.start, markers.end, *starts), emit)
            if marker is None:
                break
            if marker == markers.end:
                quote = _open_quote(thought.line + (trial.text if trial is not None else ""))
                # An answer with an enforced form may begin with a quote.
                if quote and not self._either and (yield from self._feed.char()) == quote:
                    emit(marker)
                    continue
                if trial is not None:
                    thought.add(trial.text)
                self._sink.kind = DeltaKind.CONTENT
                self._trim = self._thought = True
                return True
            if marker in starts and trial is None:
                trial = _Trial(self._open_calls())
            if marker in starts or trial is not None:
                emit(marker)
        if trial is not None and trial.finish():
            for part in trial.parts:
                if part.call is not None and part.call.name is not None:
                    self._sink.begin_call(part.call.name)
                self._sink.arguments(part.text)
            self._calls_end()
            return True
        thought.add(trial.text if trial is not None else "")
        thought.finish()
        return False

    def _bare_calls(self, read: Reader) -> Steps[None]:
        """Read calls without any marker at the beginning of content."""
        self._feed.mark()
        if (yield from read(self._feed, self._sink)):
            self._read_bare = None
        else:
            self._feed.rewind()
        self._feed.unmark()
        self._calls_end()

    def _read_calls(self, form: CallForm) -> Steps[None]:
        """Read from after the form's start marker until after its end marker."""
        feed, sink = self._feed, self._sink
        calls = sink.calls
        self._kept_end = ""
        feed.mark(len(form.start))
        sink.kind = DeltaKind.TOOL_CALL
        yield from self._skip_doubled(form.start)
        whole = yield from form.read(feed, sink)
        rest = feed.marked()
        if whole or sink.calls > calls:
            self._space = ""
        self._calls_end()
        # The reader may have continued behind an end marker, in what looked like a string.
        cut_off = not whole and feed.ended and not (form.end and form.end in rest)
        said = rest.removeprefix(form.start)
        about_it = said != rest and _PROSE.match(said) is not None
        if cut_off and about_it and not said.lstrip().startswith(tuple(sink.names)):
            # The answer is about the marker.
            feed.unread(len(said))
            self._write(form.start)
        elif cut_off:
            # A limit or a stop string has cut the text off: the text of a call is no content.
            log.debug("tool_call.cut_off", characters=len(rest))
            while (yield from feed.until((form.start,), lambda text: None)) is not None:
                pass
        elif not whole:
            log.debug("tool_call.malformed", characters=len(rest))
            if not rest.endswith(form.end):
                self._kept_end = form.end
            self._write(rest)

    def _skip_doubled(self, marker: str) -> Steps[None]:
        """Read the marker that was just read as often as it comes again."""
        while True:
            space = yield from self._feed.skip()
            if not (yield from self._feed.starts((marker,))):
                self._feed.unread(len(space))
                return

    def _calls_end(self) -> None:
        self._sink.kind = DeltaKind.CONTENT
        if self.called:
            self._answering = False
            self._after_call = True
            self._trim = not self._wrote

    def _write(self, text: str) -> None:
        """Add content. White space at its end is held back if a call, or a marker, may follow."""
        self._line = _last_line(self._line + text)
        if self._tail:
            # The answer continues behind what looked like its end, or it has ended.
            if not text.strip():
                self._tail += text
                return
            text, self._tail = self._tail + text, ""
        if self._trim:
            text = text.lstrip(_BREAKS)
            self._trim = not text
        text = self._space + text
        body = text.rstrip() if self._holds_space else text
        self._space = text[len(body) :]
        if body:
            self._sink.content(body)
            self._wrote = True
            self._answering = self._thought
            self._after_call = False


class _Thought:
    """The text of a thought, without the line breaks right inside its markers."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._held = ""
        self._blank = True
        self.line = ""

    def add(self, text: str) -> None:
        self.line = _last_line(self.line + text)
        text = text.lstrip(_BREAKS) if self._blank else self._held + text
        self._blank = self._blank and not text
        body = text.rstrip(_BREAKS)
        self._held = text[len(body) :]
        self._emit(body)

    def finish(self) -> None:
        """Add the line breaks at the end: no marker follows them."""
        self._emit(self._held)


class _Trial:
    """Reads what looks like calls in a thought, with a parser of its own, while it may be calls."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self.parts: list[Part] = []
        self.text = ""

    def add(self, text: str) -> bool:
        """Return whether all text up to here may be calls and nothing else."""
        self.text += text
        return self._add_parts(self._parser.add(text))

    def finish(self) -> bool:
        """Return whether all text was whole calls."""
        if not self._add_parts(self._parser.finish()) or not self._parser.called:
            return False
        arguments: list[str] = []
        for part in self.parts:
            if part.call is not None and part.call.name is not None:
                arguments.append("")
            arguments[-1] += part.text
        return all(map(_is_json, arguments))

    def _add_parts(self, parts: Sequence[Part]) -> bool:
        self.parts += parts
        return all(part.kind is DeltaKind.TOOL_CALL for part in parts)


def _last_line(text: str) -> str:
    return text.rpartition("\n")[2][-_LINE_CHARACTERS:]


def _open_quote(text: str) -> str:
    """Return the quote that a text ends with, if it opens what is quoted; else "".

    Behind a word it is a closing one if the last line has another before it.
    """
    line = text.rpartition("\n")[2]
    quote = line[-1:]
    if quote not in _QUOTES or line.endswith("```"):
        return ""
    before = line.rstrip(quote)[-1:]
    if not before or before.isspace() or before in "([{":
        return quote
    return quote if _APOSTROPHE.sub("", line).count(quote) % 2 else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
