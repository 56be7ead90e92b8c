"""Collects the parts of a request's answers until they are whole. Pure."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import jiter
import orjson

from lmx.protocol.messages.data import Delta, TokenLogprob
from lmx.protocol.states import DeltaKind
from lmx.router.rendering.logprobs import prompt_logprobs

_CONTENT: Final = DeltaKind.CONTENT
_PROMPT: Final = DeltaKind.PROMPT
_REASONING: Final = DeltaKind.REASONING
_CALL: Final = DeltaKind.TOOL_CALL

_ESCAPE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""An escape of JSON: a character of two halves, one half alone, or any other."""

_FOLD_DELTAS: Final = 512
"""After this many deltas they are joined: a delta takes three times the memory of its text."""


LogprobsForm = Callable[[int, Sequence[TokenLogprob]], Sequence[Any]]
"""Returns how the next tokens of a choice look in the whole answer, for ``orjson.dumps``: an entry
for each. It gets the choice's index."""


@dataclass(slots=True)
class GatheredCall:
    """A tool call."""

    call_id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    """The fragments of its JSON."""


class Stretch(NamedTuple):
    """Where a stretch of one kind begins in a choice."""

    kind: DeltaKind
    start: int
    """The place of its first piece in the list of its kind; of a call, its index."""
    logprobs_start: int
    """The place of its first token in the choice's logprobs."""


class Part(NamedTuple):
    """A stretch of one kind: all of it."""

    kind: DeltaKind
    text: str
    """Its text; of a call, its arguments as JSON."""
    logprobs: Sequence[Any]
    """The entries of a stretch of content, if they are kept."""
    call: GatheredCall | None = None
    """The call, if it is one."""


@dataclass(slots=True)
class AccumulatedChoice:
    """One choice."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, GatheredCall] = field(default_factory=dict)
    """In the order of their beginnings."""
    logprobs: list[Any] = field(default_factory=list)
    """The entries of the tokens, in the form of the answer. They are made as the tokens come: all
    of a long answer at its end would hold up the event loop."""
    prompt_logprobs: list[Any] = field(default_factory=list)
    """Those of the prompt's tokens. Only the first choice of each prompt has them."""
    token_ids: list[int] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    """In which order text, reasoning and calls came."""
    last: DeltaKind | int | None = None
    """The kind of the last stretch; of a call, its index."""

    index: int = 0
    form: LogprobsForm | None = None
    """That of the entries; None: logprobs are not kept."""

    def begin(self, kind: DeltaKind, start: int) -> None:
        """Begin a stretch."""
        self.stretches.append(Stretch(kind, start, len(self.logprobs)))
        self.last = start if kind is _CALL else kind

    def parts(self) -> Iterator[Part]:
        """Yield text, reasoning and calls in the order in which they came."""
        ends: dict[DeltaKind, Stretch] = {}
        following: list[Stretch | None] = []
        for stretch in reversed(self.stretches):
            following.append(ends.get(stretch.kind))
            ends[stretch.kind] = stretch
        for stretch, next_one in zip(self.stretches, reversed(following), strict=True):
            if stretch.kind is _CALL:
                call = self.calls[stretch.start]
                yield Part(_CALL, "".join(call.arguments), (), call)
                continue
            end = None if next_one is None else next_one.start
            if stretch.kind is _REASONING:
                yield Part(_REASONING, "".join(self.reasoning[stretch.start : end]), ())
            else:
                logprobs_end = None if next_one is None else next_one.logprobs_start
                logprobs = self.logprobs[stretch.logprobs_start : logprobs_end]
                yield Part(_CONTENT, "".join(self.content[stretch.start : end]), logprobs)

    def add(self, delta: Delta) -> None:
        """Add the next piece."""
        self.token_ids += delta.token_ids
        if delta.kind is _CONTENT and delta.call is None:
            if self.last is not _CONTENT and (delta.text or delta.logprobs):
                self.begin(_CONTENT, len(self.content))
            self.content.append(delta.text)
            if delta.logprobs and self.form is not None:
                self.logprobs += self.form(self.index, delta.logprobs)
        elif delta.kind is _PROMPT:
            self.prompt_logprobs += prompt_logprobs(delta.logprobs)
        elif delta.call is not None:
            if self.last != delta.call.index:
                self.begin(_CALL, delta.call.index)
            call = self.calls.setdefault(delta.call.index, GatheredCall())
            call.call_id = call.call_id or delta.call.call_id
            call.name = call.name or delta.call.name
            call.arguments.append(delta.text)
        else:
            if self.last is not _REASONING and delta.text:
                self.begin(_REASONING, len(self.reasoning))
            self.reasoning.append(delta.text)


class Accumulator:
    """All answers of one request, as they come.

    It is on the hot path of every stream: taking is an append to a list. What the deltas mean is
    looked at only when there are many, when they have logprobs, or when somebody asks.
    """

    __slots__ = ("_choices", "_deltas", "_logprobs", "_tokens")

    def __init__(self, answers: int, logprobs: LogprobsForm | None) -> None:
        """``logprobs`` is the form of the logprobs that are kept; None if none are."""
        self._logprobs = logprobs is not None
        self._choices = [AccumulatedChoice(index=n, form=logprobs) for n in range(answers)]
        self._deltas: list[Delta] = []
        self._tokens = 0

    def add(self, deltas: Sequence[Delta]) -> None:
        """Add the next pieces."""
        self._deltas += deltas
        if len(self._deltas) >= _FOLD_DELTAS or (deltas and deltas[-1].logprobs):
            self._fold()

    @property
    def tokens(self) -> int:
        """How many tokens have come, for all answers."""
        self._fold()
        return self._tokens

    @property
    def choices(self) -> list[AccumulatedChoice]:
        """Return what each answer has until now."""
        self._fold()
        return self._choices

    def _fold(self) -> None:
        # Nearly every delta is plain text of an answer: handling it here takes half the time.
        choices, logprobs, tokens = self._choices, self._logprobs, 0
        open_index, choice = -1, choices[0]
        for delta in self._deltas:
            tokens += delta.tokens
            if (
                delta.kind is _CONTENT
                and delta.call is None
                and not delta.token_ids
                and not (logprobs and delta.logprobs)
            ):
                if delta.index != open_index:
                    choice = choices[delta.index]
                    if choice.last is not _CONTENT and delta.text:
                        choice.begin(_CONTENT, len(choice.content))
                    # While its stretch of text continues, nothing is looked up.
                    open_index = delta.index if choice.last is _CONTENT else -1
                choice.content.append(delta.text)
            else:
                choices[delta.index].add(delta)
                open_index = -1
        self._tokens += tokens
        self._deltas.clear()


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments, for ``orjson.dumps``; of an answer that was cut off, as much as is
    there. Half of a character becomes the replacement character."""
    whole = _ESCAPE.sub(lambda found: r"\ufffd" if found["half"] else found[0], arguments)
    try:
        value = jiter.from_json(whole.encode(), partial_mode=True)
    except ValueError:
        return {}
    return _dumpable(value) if isinstance(value, dict) else {}


def _dumpable(value: Any) -> Any:
    """orjson takes integers of 64 bits only: larger ones are kept as text."""
    match value:
        case dict():
            return {name: _dumpable(part) for name, part in value.items()}
        case list():
            return [_dumpable(part) for part in value]
        case int() if not -(2**63) <= value < 2**64:
            return orjson.Fragment(str(value))
    return value
