"""What each API defines for its answers: how they look whole, and as the events of a stream. Pure.

This is the seam for a further API family. The family has one file in this package with its
:class:`AnswerFormat` and its :class:`EventWriter`; its errors and pings are a
:class:`lmx.router.http.api_family.ApiFamily`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, Finished
from lmx.router.rendering.accumulator import AccumulatedChoice, LogprobsForm
from lmx.router.rendering.envelope import Identity, RouterTimings, Warnings


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known of an answer when its worker has accepted the request."""

    prompt_tokens: int = 0
    warnings: Sequence[str] = ()
    """What is done otherwise than requested."""
    prompt_ids: Sequence[Sequence[int]] = ()
    """The tokens of each prompt, if they were requested."""
    ignored: Sequence[str] = ()
    """The fields of the request that change nothing with the model that answers."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of an answer when it has ended well."""

    finished: Finished
    clocked: RouterTimings


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated for a request until now."""

    identity: Identity
    beginning: Beginning
    choices: Sequence[AccumulatedChoice]
    ends: Mapping[int, ChoiceEnded]
    """The ends of the choices that have ended, by their indexes."""
    ending: Ending | None
    """None: not all choices have ended."""


def warnings_object(beginning: Beginning, ending: Ending | None) -> Warnings:
    """Return the field with all that was done otherwise than requested; empty if there is
    nothing."""
    late = () if ending is None else ending.finished.remarks
    return {"warnings": [*beginning.warnings, *late]} if beginning.warnings or late else {}


class EventWriter(Protocol):
    """Writes one answer as the events of one stream. Each method returns some whole events or none.

    The calls come in this order: ``first`` once; ``deltas`` and ``ends`` as often as there are
    some; ``last`` once. An error may end the stream after each of them: ``failed`` is the last
    call then. The caller sends the events without looking into them.
    """

    def first(self) -> bytes:
        """Return the events with which a stream, and each of its choices, begins."""

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Return the events for new pieces of text, of reasoning and of tool calls. This is the hot
        path: it is called for every token."""

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield the events for the ends of choices, with their reasons; all of them are requested
        before :meth:`last`. Each may have megabytes, and is made when it is requested."""

    def last(self, ending: Ending) -> bytes:
        """Return the usage, and whatever else ends a stream."""

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        """Return the event for an error that ends the stream in its middle. ``request_id`` is shown
        where clients look for it in the event."""


class AnswerFormat(Protocol):
    """The form of the answer to one request. It is made for this request and used for no other."""

    @property
    def choices(self) -> int:
        """How many choices the answer has."""

    @property
    def retained_logprobs(self) -> LogprobsForm | None:
        """How :meth:`complete_answer` shows logprobs; None if it shows none."""

    def writer(self, identity: Identity, beginning: Beginning) -> EventWriter:
        """Return the writer of the answer's stream."""

    def complete_answer(self, made: Generated) -> Mapping[str, Any]:
        """Return the whole answer, as JSON; or, without an ``ending``, the part that exists until
        now. It is called for streams too, because their record has the whole answer."""
