"""The description of a family of models: how it calls tools, and the grammars that enforce that.

A family is one value (:class:`Family`) in :mod:`lmx.worker.formats.families`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.schemas.grammar import quoted
from lmx.worker.templates.history import PLAIN_HISTORY, HistoryForm
from lmx.worker.text.feed import PartSink, Steps, TextFeed


class Tool(NamedTuple):
    """A function that may be called, and the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens of a vocabulary, by name, that are no text to a grammar."""

    ids: Mapping[str, int]
    ends: frozenset[int] = frozenset()
    """Those of the model's tokens that end an answer."""
    begun: str = ""
    """Text that stands before a grammar already, so that the grammar is written without it."""

    def lark(self, text: str) -> str:
        """Return Lark that matches ``text``, in which special tokens have their ids."""
        parts = self.split(text.removeprefix(self.begun))
        atoms = [self.atom(part) if part in self.ids else quoted(part) for part in parts]
        return " ".join(atoms)

    def split(self, text: str) -> list[str]:
        """Return the special tokens of ``text`` and the texts between them, none of them empty."""
        names = sorted(self.ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        return [part for part in parts if part]

    def atom(self, name: str) -> str:
        """Return Lark that matches the special token of this name."""
        return f"<[{self.ids[name]}]>"


@dataclass(slots=True)
class Rules:
    """A Lark grammar that is being written."""

    lines: list[str] = field(default_factory=list)

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule and return its name."""
        return self._add("r", options, body)

    def terminal(self, body: str) -> str:
        """Add a terminal and return its name."""
        return self._add("T", "", body)

    def _add(self, prefix: str, options: str, body: str) -> str:
        name = f"{prefix}{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name


Reader = Callable[[TextFeed, PartSink], Steps[bool]]
"""Reads calls. The feed must be marked; the text that is marked at the end turned out to be no
call. Returns False if no part of the text is a call."""

AnswerReader = Callable[[TextFeed, PartSink, bool, bool], Steps[None]]
"""Reads a whole answer. The last arguments are whether it begins inside the thinking, and whether
it begins inside the text of the answer."""

CallWriter = Callable[[Rules, Tool, SpecialTokens], str | None]
"""Returns the grammar of a call as Lark; None if the family's form can't express the call."""


class CallForm(NamedTuple):
    """A way to write calls, with a marker with which they begin."""

    start: str
    """The marker that begins a call or several of them."""
    end: str
    """The marker that ends them. If it is "", they end by themselves."""
    read: Reader
    """Reads on after ``start``, up to and including ``end``."""
    tokens: tuple[str, ...] = ()
    """Special tokens between the two markers."""


class CallGrammar(NamedTuple):
    """The form that enforced calls must have."""

    write: CallWriter
    """Writes the grammar of one call."""
    open: str = ""
    """What stands before the first call."""
    between: str = ""
    """What stands between two calls."""
    close: str = ""
    """The text behind the last call. If it is "", nothing encloses the calls. It must not begin
    like ``between`` and a call do: a grammar takes the longest text that may be meant."""
    several: bool = True
    """Whether an answer may have more than one call."""


class UnmarkedForm(NamedTuple):
    """How a call without any marker is written. It is all of an answer."""

    before: str
    """The regular expression of the text up to the object of arguments, with ``{}`` in place of
    the function's name."""
    after: str
    """The regular expression of the text behind the arguments."""
    enforced: str
    """What calls of this form look like, for people."""


class AnswerForm(NamedTuple):
    """How whole answers are written, for a family that marks more than calls."""

    read: AnswerReader
    """Separates content, reasoning and calls."""
    grammar: Callable[[SpecialTokens, str], str]
    """Returns Lark for the text around an answer, whose grammar the second argument names."""
    free: Callable[[Rules, Sequence[Tool], SpecialTokens], str]
    """Returns Lark for an answer of any text, in which calls are held to their form."""
    tokens: tuple[str, ...]
    """The special tokens that the form uses."""


class MessageForm(NamedTuple):
    """How answers are written that are several messages, each with a header that names its
    recipient. The text of a message is what other families write without a header. The prompt ends
    where the first header continues with its recipient."""

    start: str
    """What begins a header."""
    role: str
    """What is in a header before its recipient."""
    recipient: str
    """What is before the recipient's name."""
    body: str
    """What ends a header."""
    ends: tuple[str, ...]
    """What ends a message."""
    user: str
    """The recipient of an answer. That of a call is the tool."""
    thinking: ReasoningMarkers
    """What a message to the model itself, which is a thought, begins and ends with."""

    def header(self, special: SpecialTokens, recipients: Iterable[str]) -> str:
        """Return Lark for the header of a message to one of these, which may be left out."""
        names = " | ".join(map(quoted, recipients))
        begun, body = special.lark(self.start + self.role), special.lark(self.body)
        return f"(({begun})? {quoted(f' {self.recipient}')} ({names}) {body})?"


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models calls tools."""

    name: str
    """What a model's ``tool_parser`` calls it: the name that mlx-vlm has for it, if it has one."""
    calls: tuple[CallForm, ...] = ()
    """The forms to look for in an answer. It is empty only if ``answer`` describes everything."""
    grammar: CallGrammar | None = None
    """The form of enforced calls. None: JSON in ``<tool_call>``, which is always read."""
    older: tuple[str, CallGrammar] | None = None
    """A special token, and the grammar for vocabularies that don't have it."""
    read_bare: Reader | None = None
    """Reads calls without any marker at the beginning of an answer, if the family has them."""
    unmarked: UnmarkedForm | None = None
    """How the model itself writes calls, if it puts no marker before them."""
    answer: AnswerForm | None = None
    """How whole answers are written. None: as content, with marked reasoning and calls in it."""
    messages: MessageForm | None = None
    """How its answers are divided into messages. None: they are not."""
    template_markers: tuple[tuple[str, ...], ...] = ()
    """Texts by which a chat template is recognised: all texts of one group must be in it. Empty for
    a family that mlx-vlm's registry recognises by its template."""
    history: HistoryForm = PLAIN_HISTORY
    """How its chat template wants the messages of a conversation."""
    efforts: tuple[str, ...] | None = None
    """The words for a reasoning effort that the model knows, the least first, of a family whose
    template refuses no others. None: those that the template does not refuse."""
    remark: str = ""
    """What people should know about how its calls are read or enforced."""

    def grammar_for(self, special: SpecialTokens) -> CallGrammar | None:
        """Return the form of enforced calls for a model with these special tokens."""
        if self.older is not None and self.older[0] not in special.ids:
            return self.older[1]
        return self.grammar
