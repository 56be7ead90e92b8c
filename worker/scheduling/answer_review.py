"""Holds the ends of a request's answers back until they have been checked against its schema."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lmx.protocol.messages.data import Delta
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.worker.engine.values import AnswerCheck, Unchecked
from lmx.worker.scheduling.requests import ChoiceFinished

_MAX_S: Final = 1.0
"""How long the check of all answers to a request may take, in seconds of the processor: no answer
stays unchecked because the machine is busy. Most of it holds the GIL."""


class AnswerReview:
    """The answers of one request that are not known to satisfy its schema.

    With ``hold_text`` the text is held back too, so that nobody has seen it and another answer may
    be made in its place. Only answers that the model itself ended are checked: the arguments of
    their calls, or their text if there are no calls.
    """

    def __init__(
        self,
        check: AnswerCheck | None,
        call_checks: Mapping[str, AnswerCheck],
        *,
        hold_text: bool,
        is_retry: bool = False,
    ) -> None:
        self._check = check
        self._call_checks = call_checks
        self._hold_text = hold_text
        self.is_retry = is_retry
        self.remarks: tuple[str, ...] = ()
        """What could not be checked, in sentences for people."""
        self._texts: dict[int, list[str]] = {}
        # By answer and call, the function and the pieces of its arguments.
        self._calls: dict[int, dict[int, tuple[str | None, list[str]]]] = {}
        self._ends: list[ChoiceFinished] = []
        self._held: list[Delta | ChoiceFinished] = []

    @property
    def may_retry(self) -> bool:
        """Whether other answers may be made in place of these."""
        return self._hold_text and not self.is_retry

    def retry(self) -> AnswerReview:
        """Return the review of the answers that are made in place of these."""
        return AnswerReview(
            self._check, self._call_checks, hold_text=self._hold_text, is_retry=True
        )

    def receive(self, output: Delta | ChoiceFinished) -> Sequence[Delta | ChoiceFinished]:
        """Note an answer's output; return what may be sent now."""
        if isinstance(output, ChoiceFinished):
            self._ends.append(output)
            self._held.append(output)
            return ()
        if output.call is not None:
            calls = self._calls.setdefault(output.index, {})
            call = calls.setdefault(output.call.index, (output.call.name, []))
            call[1].append(output.text)
        elif output.kind is DeltaKind.CONTENT:
            self._texts.setdefault(output.index, []).append(output.text)
        if self._hold_text:
            self._held.append(output)
            return ()
        return (output,)

    def fault(self) -> str | None:
        """Return what is wrong with one of the answers; None if nothing is known to be. All answers
        together get a second of the processor; what does not fit into it becomes a remark."""
        until_s = time.thread_time() + _MAX_S
        for end in self._ends:
            if end.reason is FinishReason.LENGTH or end.stop is not None:
                continue
            for check, text in self._parts(end.choice):
                if check is None:
                    continue
                try:
                    fault = check(text, lambda: until_s - time.thread_time())
                except Unchecked as parts:
                    self.remarks = (
                        f"This was not checked, because it takes more than {_MAX_S:g} s: {parts}.",
                    )
                    return None
                if fault is not None:
                    return fault
        return None

    def _parts(self, answer: int) -> Iterator[tuple[AnswerCheck | None, str]]:
        for name, pieces in self._calls.get(answer, {}).values():
            yield self._call_checks.get(name or ""), "".join(pieces)
        if answer not in self._calls:
            yield self._check, "".join(self._texts.get(answer, ()))

    def held(self) -> Sequence[Delta | ChoiceFinished]:
        """Return the output that was held back, in its order."""
        return self._held
