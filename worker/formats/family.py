"""What is said of a family of models: how it calls tools, and what grammars hold it to.

A family is one value (:class:`Family`) in a file of its own below
:mod:`lmx.worker.formats.families`, and one line of the table there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lmx.worker.schemas.grammar import quoted
from lmx.worker.templates.history import PLAIN_HISTORY, HistoryForm
from lmx.worker.text.feed import PartSink, Steps, TextFeed


class Tool(NamedTuple):
    """A function that may be called, and the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens of a vocabulary that are no text to a grammar, by name."""

    ids: Mapping[str, int]

    def lark(self, text: str) -> str:
        """Return Lark that matches ``text``, in which special tokens have their names."""
        names = sorted(self.ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        atoms = [
            f"<[{self.ids[part]}]>" if part in self.ids else quoted(part) for part in parts if part
        ]
        return " ".join(atoms)


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
"""Reads calls. The feed must be marked; what is marked at the end is what turned out to be no call.
Returns False when all of it is none."""

AnswerReader = Callable[[TextFeed, PartSink, bool], Steps[None]]
"""Reads a whole answer. The last argument: it begins inside the thinking."""

CallWriter = Callable[[Rules, Tool, SpecialTokens], str | None]
"""Returns the grammar of a call as Lark, None when the family's form can't express it."""


class CallForm(NamedTuple):
    """A way to write calls, with a mark at which they begin."""

    start: str
    """The mark that begins a call or several of them."""
    end: str
    """The mark that ends them. "": they end by themselves."""
    read: Reader
    """Reads on from behind ``start``, up to and including ``end``."""
    tokens: tuple[str, ...] = ()
    """Special tokens between the two marks."""


class CallGrammar(NamedTuple):
    """What calls that must be made are held to."""

    write: CallWriter
    """Writes the grammar of one call."""
    open: str = ""
    """What stands before the first call."""
    between: str = ""
    """What stands between two calls."""
    close: str = ""
    """What stands behind the last call. "": nothing encloses the calls. It doesn't begin as
    ``between`` and a call do: a grammar takes the longest text that may be meant."""
    several: bool = True
    """Whether an answer may have more than one call."""


class AnswerForm(NamedTuple):
    """How whole answers are written, by a family that marks more than calls."""

    read: AnswerReader
    """Tells apart what is content, reasoning and calls."""
    grammar: Callable[[SpecialTokens, str], str]
    """Returns Lark for what is around an answer; the second argument names the answer's grammar."""
    tokens: tuple[str, ...]
    """The special tokens of which it is made."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models calls tools."""

    name: str
    """What a model's ``tool_parser`` calls it: the name that mlx-vlm has for it, if it has one."""

    calls: tuple[CallForm, ...] = ()
    """The forms to look for in an answer. Empty only where ``answer`` says it all."""

    grammar: CallGrammar | None = None
    """What calls are held to. None: to JSON in ``<tool_call>``, which is read with every family."""

    older: tuple[str, CallGrammar] | None = None
    """A special token, and the grammar for vocabularies that don't have it."""

    read_bare: Reader | None = None
    """Reads calls without any mark that an answer begins with, where the family writes such."""

    answer: AnswerForm | None = None
    """How whole answers are written. None: as content, with reasoning and calls marked in it."""

    template_marks: tuple[tuple[str, ...], ...] = ()
    """Texts by which a chat template is the family's: all those of one group are in it. Empty for a
    family that mlx-vlm's registry tells by its template."""

    history: HistoryForm = PLAIN_HISTORY
    """What its chat template wants of the messages of a conversation."""

    efforts: Mapping[str, str] = field(default_factory=dict)
    """Words for the reasoning effort that its template doesn't know, and what it calls them."""

    remark: str = ""
    """What people should know of how its calls are read or enforced."""

    def grammar_for(self, special: SpecialTokens) -> CallGrammar | None:
        """Return what calls are held to in a model with these special tokens."""
        if self.older is not None and self.older[0] not in special.ids:
            return self.older[1]
        return self.grammar
