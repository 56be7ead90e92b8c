"""The thinking before an answer: it finds where the thinking ends, and enforces its budget."""

from __future__ import annotations

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

# Models write a line break or two after their thinking, which no grammar contains. Without a
# bound a row at a high temperature writes nothing else.
_LINE_BREAKS: Final = 4


class _Phase(Enum):
    # Nothing was written yet: the model may think, or answer at once.
    """Where the text of an answer is."""

    BEFORE = auto()
    # Inside the text that begins the thinking; it may still turn out to be the answer.
    OPENING = auto()
    THINKING = auto()
    # The thinking has ended, and no word of the answer has come.
    AFTER = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class ThinkingRules:
    """How a model thinks before its answer."""

    start: tuple[int, ...]
    """The tokens that begin the thinking."""
    end_id: int
    """The token that ends it, also when the budget is spent."""
    budget_tokens: int | None
    line_breaks: bool = True
    """Whether line breaks may come between the thinking and the answer."""


class ThinkingConstraint:
    """Lets a model think, within its budget, and then keeps its answer to ``answer``.

    If ``answer`` is None, the answer is free. ``open`` means that the prompt ends inside the
    thinking. If there must be an answer, the thinking can't end with EOS.
    """

    __slots__ = ("_answer", "_breaks", "_other", "_phase", "_read", "_rules", "_thought", "_vocab")

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
        # While opening: the constraint as if this was the answer; and how many tokens were read.
        self._other: GrammarConstraint | None = None
        self._read = 0
        self._thought = 0
        self._breaks = 0

    def mask(self) -> Mask | None:
        if self._phase is _Phase.THINKING:
            return self._thinking_mask()
        if self._answer is None:
            return None
        if self._phase is _Phase.OPENING:
            mask = self._other.mask() if self._other else self._vocab.cut(self._vocab.new())
            allow(mask, self._rules.start[self._read])
            return mask
        mask = self._answer.mask()
        if self._phase is _Phase.BEFORE:
            allow(mask, self._rules.start[0])
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
                self._go_on(self._answer, token)

    def fork(self) -> ThinkingConstraint:
        twin = ThinkingConstraint(
            self._answer.fork() if self._answer else None, self._vocab, self._rules, False
        )
        twin._other = self._other.fork() if self._other else None
        twin._phase, twin._read = self._phase, self._read
        twin._thought, twin._breaks = self._thought, self._breaks
        return twin

    def _thinking_mask(self) -> Mask | None:
        if self._spent():
            mask = self._vocab.new()
            allow(mask, self._rules.end_id)
            return self._vocab.cut(mask)
        return self._vocab.thinking if self._answer else None

    def _spent(self) -> bool:
        budget = self._rules.budget_tokens
        return budget is not None and self._thought >= budget

    def _begin(self, token: int) -> None:
        if token == self._rules.start[0]:
            if self._answer and len(self._rules.start) > 1 and self._answer.allows(token):
                self._other = self._answer.fork()
                self._other.accept(token)
            self._opened()
        elif self._answer or not allowed(self._vocab.line_breaks, token):
            self._go_on(self._answer, token)

    def _open(self, token: int) -> None:
        if token == self._rules.start[self._read]:
            if self._other is not None:
                self._other = self._accepted(self._other, token)
            self._opened()
        else:
            if self._answer and not self._other:
                raise forbidden(token)
            self._go_on(self._other, token)

    def _accepted(self, other: GrammarConstraint, token: int) -> GrammarConstraint | None:
        if not other.allows(token):
            return None
        other.accept(token)
        return other

    def _opened(self) -> None:
        self._read += 1
        self._phase = _Phase.OPENING
        if self._read == len(self._rules.start):
            self._phase = _Phase.THINKING
            self._other = None

    def _think(self, token: int) -> None:
        if token == self._rules.end_id:
            self._phase = _Phase.AFTER if self._answer else _Phase.ANSWER
        elif self._spent() or (self._answer and token in self._vocab.eos_token_ids):
            raise forbidden(token)
        else:
            self._thought += 1

    def _go_on(self, answer: GrammarConstraint | None, token: int) -> None:
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
