"""What an API must say of its answers: how they look whole, and as the events of a stream. Pure.

This is the seam for a further API family. One file of this room has its :class:`AnswerFormat` and
its :class:`EventWriter`; its errors and pings are a :class:`lmx.router.http.api_family.ApiFamily`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmx.protocol.messages.data import ChoiceEnded, Delta, Finished
from lmx.router.rendering.accumulator import AccumulatedChoice
from lmx.router.rendering.envelope import Identity, RouterTimings


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known of an answer when its worker has accepted it."""

    prompt_tokens: int = 0
    warnings: Sequence[str] = ()
    """What is done otherwise than it was asked for."""
    prompt_ids: Sequence[Sequence[int]] = ()
    """The tokens of each prompt, where they were asked for."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of an answer when it has ended well."""

    finished: Finished
    clocked: RouterTimings


class EventWriter(Protocol):
    """Writes one answer as the events of one stream, each method some whole events or none.

    The calls come in this order: ``first`` once, ``deltas`` and ``ends`` as often as there are
    some, ``last`` once. An error may end the stream after each of them: what is written then is
    the family's. The caller sends what it gets and looks into nothing of it.
    """

    def first(self) -> bytes:
        """Return what a stream, and each of its choices, begins with."""

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Return the pieces of text, of reasoning and of tool calls that have come. The hot
        path: this is called for every token."""

    def ends(self, ended: Sequence[ChoiceEnded]) -> bytes:
        """Return the ends of choices, with their reasons."""

    def last(self, ending: Ending) -> bytes:
        """Return the usage, and whatever ends a stream."""


class AnswerFormat(Protocol):
    """How the answer to one request looks. Made of the request, and good for this one alone."""

    @property
    def choices(self) -> int:
        """How many choices the answer has."""

    @property
    def keeps_logprobs(self) -> bool:
        """Whether :meth:`whole` shows logprobs."""

    def writer(self, identity: Identity, beginning: Beginning) -> EventWriter:
        """Return the writer of its stream."""

    def whole(
        self,
        identity: Identity,
        beginning: Beginning,
        choices: Sequence[AccumulatedChoice],
        ends: Mapping[int, ChoiceEnded],
        ending: Ending | None,
    ) -> dict[str, Any]:
        """Return the whole answer, as JSON; or, without an ``ending``, what there is of it.
        Choices that are not in ``ends`` have not come to their end. Also of an answer that
        streams: its record has it whole."""
