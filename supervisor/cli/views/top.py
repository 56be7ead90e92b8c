"""`lmx top`: models with their tokens per second, memory and events, until q or Ctrl-C."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.control import Event
from lmx.protocol.messages.status import ModelStatus, SupervisorStatus, SystemStatus
from lmx.protocol.token_rates import TokenRates
from lmx.supervisor.cli.views.events import EventCursor, event_words, one_line
from lmx.supervisor.cli.views.progress import make_console
from lmx.supervisor.cli.views.table import Column, model_columns, model_table
from lmx.supervisor.cli.views.words import duration, memory_words, note_text, remarks, router_words
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.sockets.client import Place, ReconnectingClient

_BAR_WIDTH: Final = 30
_NOTE_WIDTH: Final = 24
_OTHER_LINES: Final = 7
"""Two of processes, a blank one, the heading, a blank one, that of the keys, and one for Ctrl-C."""

_KEYS_SHOWN: Final = "q quits"


def top_frame(
    status: SystemStatus,
    rates: TokenRates,
    events: Sequence[Event],
    size: tuple[int, int],
    now_s: float,
    machines: RenderableType | None = None,
) -> RenderableType:
    """Return the frame for a terminal of that many columns and lines; ``now_s`` is the time of
    day, and ``machines`` what is shown of the peers."""
    width, height = size
    supervisor, workers = status.supervisor, status.workers
    parts: list[RenderableType] = [_processes(status), _budget(supervisor)]
    if words := memory_words(supervisor):
        parts.append(Text(words, style="yellow", no_wrap=True, overflow="ellipsis"))
    parts += [Text(""), _models(workers, rates, width, now_s)]
    left = height - _OTHER_LINES - len(workers) - (len(parts) - 4)
    if machines is not None:
        parts += [Text(""), machines]
        left -= 2 + (machines.row_count if isinstance(machines, Table) else 0)
    shown = list(events)[-left:] if left > 0 else []
    if shown:
        parts += [Text(""), *(_event(event) for event in shown)]
    return Group(*parts)


def _processes(status: SystemStatus) -> Text:
    supervisor, router = status.supervisor, status.router
    return Text(
        f"lmx {supervisor.version}  {supervisor.state} for "
        f"{duration(supervisor.uptime_s)}  {router.url or f'router {router.state}'}  "
        f"{router_words(router)}",
        no_wrap=True,
        overflow="ellipsis",
    )


def _budget(supervisor: SupervisorStatus) -> RenderableType:
    reserved, budget = supervisor.reserved_bytes, supervisor.budget_bytes
    grid = Table.grid(padding=(0, 1))
    full = reserved > budget
    grid.add_row(
        "memory",
        ProgressBar(
            total=max(1, budget),
            completed=min(reserved, budget),
            width=_BAR_WIDTH,
            complete_style="red" if full else "green",
            finished_style="red" if full else "yellow",
        ),
        f"{format_bytes(reserved)} of {format_bytes(budget)} reserved",
        "" if supervisor.machine_watts is None else f" power {supervisor.machine_watts:.0f} W",
    )
    return grid


def _models(workers: Sequence[ModelStatus], rates: TokenRates, width: int, now_s: float) -> Table:
    columns = model_columns(workers)
    for absent in ("PID", "SERVED"):
        del columns[absent]
    speeds = (rates.of(worker.instance) for worker in workers)
    speed = Column("TOK/S", tuple("-" if one is None else f"{one:.0f}" for one in speeds), 5)
    notes = tuple(one_line(note_text(worker, remarks(worker), now_s)) for worker in workers)
    note = Column("NOTE", notes, right=False, cut_to=_NOTE_WIDTH)
    return model_table([*columns.values(), speed, note], width)


def _event(event: Event) -> Text:
    when = time.strftime("%H:%M:%S", time.localtime(event.at_s))
    text = "  ".join(part for part in (event.model_id, event_words(event)) if part)
    return Text.assemble(
        (when, "dim"), "  ", (f"{event.name:<18}", "bold"), "  ", text,
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip


_REFRESH_S: Final = 1.0
_EVENTS_KEPT: Final = 100
_PLAIN_HEIGHT: Final = 24
_PEERS_S: Final = 1.0
"""How long a frame waits for what is known of the peers."""


def run_top(place: Place, *, all_machines: bool = False) -> None:
    """Show frames until q or Ctrl-C; where stdout is no terminal, one. With ``all_machines`` they
    have the peers too.

    Raises :class:`OperationError` when lmx does not run, or has been away for long.
    """
    cursor = EventCursor()
    rates = TokenRates()
    events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
    with ReconnectingClient(place) as client:
        status = client.status()
        assert status is not None  # the first question is answered, or raises
        if not sys.stdout.isatty():
            events.extend(event for _, event in cursor.read(client))
            console = make_console()
            size = (console.width, _PLAIN_HEIGHT)
            peers = _peers(place, status) if all_machines else None
            console.print(top_frame(status, rates, events, size, time.time(), peers))
            return
        # Also what ends it from elsewhere has to give the terminal's screen back.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        console = Console(highlight=False)
        peers_of = partial(_peers, place) if all_machines else None
        try:
            with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    _show(live, console, client, cursor, rates, events, peers_of)
                    if "q" in pressed(_REFRESH_S).lower():
                        return
        except KeyboardInterrupt:
            return


def _peers(place: Place, status: SystemStatus) -> RenderableType:
    """Return what the router knows of the machine's peers, or why it does not say."""
    from lmx.supervisor.cli.machines import machines, machines_table

    try:
        return machines_table(machines(place, status.router.url, _PEERS_S))
    except OperationError as error:
        return Text(f"the peers are not known: {error.message}", style="yellow")


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Have keys read without Enter. The function that is returned waits for this many seconds, and
    returns what was typed. The terminal is as before when the block ends."""
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([terminal], [], [], wait_s)
        typed = os.read(terminal, 64) if ready else b""
        return typed.decode("utf-8", "replace")

    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(wait_s: float) -> str:
    time.sleep(wait_s)
    return ""


def _show(
    live: Live,
    console: Console,
    client: ReconnectingClient,
    cursor: EventCursor,
    rates: TokenRates,
    events: deque[Event],
    peers_of: Callable[[SystemStatus], RenderableType] | None,
) -> None:
    status = client.status()
    if status is None:
        live.update(Text("lmx does not answer; waiting for it to come back"), refresh=True)
        return
    events.extend(event for _, event in cursor.read(client))
    rates.take(status.workers, time.monotonic())
    peers = None if peers_of is None else peers_of(status)
    frame = top_frame(status, rates, events, (console.width, console.height), time.time(), peers)
    live.update(Group(frame, Text(_KEYS_SHOWN, style="dim")), refresh=True)
