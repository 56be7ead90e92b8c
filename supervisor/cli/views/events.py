"""What `lmx events` prints: the supervisor's events as lines, followed if asked."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from lmx.protocol.free_text import terminal_text
from lmx.protocol.messages import control
from lmx.protocol.messages.control import Event, EventList, event_object
from lmx.protocol.messages.status import GetStatus, Status
from lmx.supervisor.cli.command import served_config
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.cli.views.words import find_configured, find_model
from lmx.supervisor.sockets.client import Place, ReconnectingClient, supervisor_runs
from lmx.supervisor.state.event_file import EventFile
from lmx.supervisor.state.home import Home

_POLL_S: Final = 0.3
_KEPT: Final = 2000
"""At least as many as a supervisor keeps: with a filter, the last of them are picked here."""


def show_events(
    place: Place, model: str | None, count: int, *, follow: bool, as_json: bool
) -> None:
    """Print the last ``count`` events, of one model if named, also those of supervisors before;
    continue with ``follow``.

    Raises :class:`OperationError` when no model has that name, and when lmx does not run and has
    left no events, or there is somebody to follow.
    """
    write = _write_json if as_json else _write_line
    kept: Sequence[tuple[str, Event]] = ()
    if isinstance(place, Home):
        kept = EventFile(place.events).read()
        if not follow and kept and not supervisor_runs(place):
            write(deque(_of_model(kept, _id_of(model, kept)), maxlen=count))
            return
    with ReconnectingClient(place) as client:
        if not isinstance(place, Home):
            kept = _earlier(client)
        model_id = None
        if any(event.model_id == model for _, event in kept):
            model_id = model  # also if it was removed since
        elif model is not None:
            found: Status = _answer(client, GetStatus())
            model_id = find_model(found.status.workers, model).model
        cursor = EventCursor()

        def wanted() -> Iterator[tuple[str, Event]]:
            return _of_model(cursor.read(client), model_id)

        latest = list(wanted())
        while cursor.epoch is None:  # no supervisor has answered yet
            time.sleep(_POLL_S)
            latest = list(wanted())
        before = _of_model((one for one in kept if one[0] != cursor.epoch), model_id)
        write(deque([*before, *latest], maxlen=count))
        while follow:
            time.sleep(_POLL_S)
            write(wanted())


def _id_of(model: str | None, kept: Sequence[tuple[str, Event]]) -> str | None:
    """Return a model's id where no lmx runs: that of a model that has events, also if it was
    removed since, else of one that lmx would serve. Raises :class:`OperationError`."""
    if model is None or any(event.model_id == model for _, event in kept):
        return model
    return find_configured(served_config().models, model).id


def _earlier(client: ReconnectingClient) -> Sequence[tuple[str, Event]]:
    """Return the events of supervisors before, as far as the one that runs has them."""
    found: EventList = _answer(client, control.GetEvents(0, _KEPT, earlier=True))
    return [(life.epoch, event) for life in found.earlier for event in life.events]


def _answer(client: ReconnectingClient, question: Any) -> Any:
    """Return the reply, also of a supervisor that is being restarted. Raises as
    :meth:`ReconnectingClient.ask` does."""
    while (reply := client.ask(question)) is None:
        time.sleep(_POLL_S)
    return reply


def _of_model(
    events: Iterable[tuple[str, Event]], model_id: str | None
) -> Iterator[tuple[str, Event]]:
    return (one for one in events if model_id is None or one[1].model_id == model_id)


class EventCursor:
    """Where a reader of events is; a supervisor that restarts counts from 1 again."""

    def __init__(self) -> None:
        self._epoch: str | None = None
        self._seq = 0

    @property
    def epoch(self) -> str | None:
        """The life of the supervisor that was read last, None before that."""
        return self._epoch

    def read(self, client: ReconnectingClient) -> Iterator[tuple[str, Event]]:
        """Yield each event with its epoch that is new since the last call, oldest first;
        nothing while no supervisor answers."""
        for _ in range(2):
            after_seq = self._seq
            found: EventList | None = client.ask(control.GetEvents(after_seq, _KEPT))
            if found is None:
                return
            restarted = found.epoch != self._epoch and self._epoch is not None
            self._epoch = found.epoch
            if not restarted:
                self._seq = found.last_seq
                for event in found.events:
                    if event.seq > after_seq:  # a router repeats them for a new connection
                        yield found.epoch, event
                return
            self._seq = 0  # what was asked for was counted by the supervisor before


def _write_json(found: Iterable[tuple[str, Event]]) -> None:
    for epoch, event in found:
        sys.stdout.write(event_json(epoch, event) + "\n")
    sys.stdout.flush()


def _write_line(found: Iterable[tuple[str, Event]]) -> None:
    for _, event in found:
        sys.stdout.write(event_line(event) + "\n")
    sys.stdout.flush()


def event_json(epoch: str, event: Event) -> str:
    """Return an event as one line of JSON. ``seq`` is unique within an ``epoch``."""
    return json_text(event_object(epoch, event), None)


def event_line(event: Event) -> str:
    """Return an event as one line for a person, in local time. Its data are for programs: what
    matters of them stands in the detail too, but for the cause of an exit."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_s))
    parts = (when, f"{event.name:<18}", event.model_id or "", event_words(event))
    return "  ".join(part for part in parts if part)


def event_words(event: Event) -> str:
    """Return what an event says, on one line."""
    cause = event.data.get("cause")
    return one_line(f"{str(cause).replace('_', ' ')}: {event.detail}" if cause else event.detail)


def one_line(text: str) -> str:
    """Return a text that may have several lines as one, without control characters."""
    return terminal_text(" ".join(text.split()))
