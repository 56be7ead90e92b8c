"""The thinking before an answer: it finds where the thinking ends, and enforces its budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from lmx.worker.constraints.grammar import (
    GrammarConstraint,
    Mask,
    TokenMasks,
    allow,
    allowed,
    forbidden,
)
from lmx.worker.constraints.markers import LINE_BREAKS, Marker, leading

# Models write a line break or two after their thinking, which no grammar contains. Without a
# bound a row at a high temperature writes nothing else.
_LINE_BREAKS: Final = 4


class _Phase(Enum):
    """Where the text of an answer is."""

    BEFORE = auto()
    """Nothing was written yet: the model may think, or answer at once."""
    OPENING = auto()
    """Inside the text that begins the thinking. It may still turn out to be the answer."""
    THINKING = auto()
    AFTER = auto()
    """The thinking has ended, and no word of the answer has come."""
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class ThinkingRules:
    """How a model thinks before its answer."""

    start: Marker
    """What begins the thinking."""
    end: Marker
    """What ends it."""
    end_tokens: tuple[int, ...]
    """The tokens that are written to end it when the budget is spent."""
    token_bytes: Callable[[int], bytes]
    """Returns the bytes of a token, as the markers have them."""
    budget_tokens: int | None
    line_breaks: bool = True
    """Whether line breaks may come between the thinking and the answer."""


class ThinkingConstraint:
    """Lets a model think, within its budget, and then keeps its answer to ``answer``.

    If ``answer`` is None, the answer is free. ``thinking_open`` means that the prompt ends inside
    the thinking. If there must be an answer, the thinking can't end with EOS, and no token that
    ends it has a part of the answer.
    """

    def __init__(
        self,
        answer: GrammarConstraint | None,
        masks: TokenMasks,
        rules: ThinkingRules,
        thinking_open: bool,
    ) -> None:
        self._answer = answer
        self._vocab = masks
        self._rules = rules
        self._phase = _Phase.THINKING if thinking_open else _Phase.BEFORE
        # While opening: the constraint as if this was the answer; and how many bytes of the marker
        # were read.
        self._other: GrammarConstraint | None = None
        self._read = 0
        # The last bytes of the thinking, in which the marker that ends it may have begun.
        self._last = b""
        self._thought = 0
        # How many tokens of the end have been written because the budget is spent.
        self._forced = 0
        self._breaks = 0

    def mask(self) -> Mask | None:
        if self._phase is _Phase.THINKING:
            return self._thinking_mask()
        if self._answer is None:
            return None
        if self._phase is _Phase.OPENING:
            mask = self._other.mask() if self._other else self._vocab.cut(self._vocab.new())
            mask |= self._rules.start.onward[self._read]
            return mask
        mask = self._answer.mask()
        if self._phase is _Phase.BEFORE:
            mask |= self._rules.start.onward[0]
        elif self._phase is _Phase.AFTER and self._may_break():
            mask |= self._vocab.line_breaks
        return mask

    def accept(self, token: int) -> None:
        match self._phase:
            case _Phase.BEFORE:
                self._begin(token)
            case _Phase.OPENING:
                self._open(token)
            case _Phase.THINKING:
                self._think(token)
            case _Phase.AFTER if self._is_break(token):
                self._breaks += 1
            case _:
                self._continue_answer(self._answer, token)

    def fork(self) -> ThinkingConstraint:
        twin = ThinkingConstraint(
            self._answer.fork() if self._answer else None, self._vocab, self._rules, False
        )
        twin._other = self._other.fork() if self._other else None
        twin._phase, twin._read, twin._last = self._phase, self._read, self._last
        twin._thought, twin._forced, twin._breaks = self._thought, self._forced, self._breaks
        return twin

    def _thinking_mask(self) -> Mask | None:
        if self._spent():
            mask = self._vocab.new()
            allow(mask, self._rules.end_tokens[self._forced])
            return self._vocab.cut(mask)
        if self._answer is None:
            return None
        end = self._rules.end
        return self._vocab.thinking & ~end.spilling[end.begun_by(self._last)]

    def _spent(self) -> bool:
        budget = self._rules.budget_tokens
        return budget is not None and self._thought >= budget

    def _begin(self, token: int) -> None:
        data = leading(self._rules.token_bytes(token))
        if self._continues(data):
            if self._answer and self._answer.allows(token):
                self._other = self._answer.fork()
                self._other.accept(token)
            self._opened(token, data)
        elif self._answer or not allowed(self._vocab.line_breaks, token):
            self._continue_answer(self._answer, token)

    def _open(self, token: int) -> None:
        data = self._rules.token_bytes(token)
        if self._continues(data):
            if self._other is not None:
                self._other = self._accepted(self._other, token)
            self._opened(token, data)
        else:
            if self._answer and not self._other:
                raise forbidden(token)
            self._continue_answer(self._other, token)

    def _continues(self, data: bytes) -> bool:
        """Return whether ``data`` continues the marker that begins the thinking."""
        rest = self._rules.start.data[self._read :]
        return bool(data) and (rest.startswith(data) or data.startswith(rest))

    def _accepted(self, other: GrammarConstraint, token: int) -> GrammarConstraint | None:
        if not other.allows(token):
            return None
        other.accept(token)
        return other

    def _opened(self, token: int, data: bytes) -> None:
        start = self._rules.start.data
        behind = data[len(start) - self._read :]
        self._read += len(data)
        self._phase = _Phase.OPENING
        if self._read >= len(start):
            self._phase = _Phase.THINKING
            self._other = None
            self._read_thinking(token, behind)

    def _think(self, token: int) -> None:
        if self._spent():
            if token != self._rules.end_tokens[self._forced]:
                raise forbidden(token)
            self._forced += 1
        elif self._answer and token in self._vocab.eos_token_ids:
            raise forbidden(token)
        if not self._read_thinking(token, self._rules.token_bytes(token)) and not self._forced:
            self._thought += 1

    def _read_thinking(self, token: int, data: bytes) -> bool:
        """Read bytes of the thinking. Returns whether they end it."""
        end = self._rules.end.data
        thought, found, behind = (self._last + data).partition(end)
        if not found:
            self._last = thought[-len(end) :]
            return False
        if self._answer and behind.strip(LINE_BREAKS):
            raise forbidden(token)
        self._phase = _Phase.AFTER if self._answer else _Phase.ANSWER
        self._breaks += bool(behind)
        return True

    def _continue_answer(self, answer: GrammarConstraint | None, token: int) -> None:
        self._answer = answer
        self._other = None
        self._phase = _Phase.ANSWER
        if answer:
            answer.accept(token)

    def _may_break(self) -> bool:
        return self._rules.line_breaks and self._breaks < _LINE_BREAKS

    def _is_break(self, token: int) -> bool:
        """Return whether ``token`` only separates thinking and answer. If the answer allows it, it
        is a part of the answer."""
        if not self._may_break() or not allowed(self._vocab.line_breaks, token):
            return False
        return not (self._answer and self._answer.allows(token))
