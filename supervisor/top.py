"""`lmx-supervisor top`: models, memory and events, live, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lmx.protocol.control import Event
from lmx.supervisor.console import make_console
from lmx.supervisor.event_view import EventCursor
from lmx.supervisor.home import Home
from lmx.supervisor.steady_client import SteadyClient
from lmx.supervisor.token_rates import TokenRates
from lmx.supervisor.top_view import top_frame

_REFRESH_S: Final = 1.0
_EVENTS_KEPT: Final = 100
_PLAIN_HEIGHT: Final = 24


def run_top(home: Home) -> None:
    """Show frames until Ctrl-C; where stdout is no terminal, one.

    Raises :class:`OperationError` when lmx does not run, or has been away for long.
    """
    cursor = EventCursor()
    rates = TokenRates()
    events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
    with SteadyClient(home) as client:
        status = client.status()
        assert status is not None  # the first question is answered, or raises
        if not sys.stdout.isatty():
            events.extend(event for _, event in cursor.read(client))
            console = make_console()
            size = (console.width, _PLAIN_HEIGHT)
            console.print(top_frame(status, rates, events, size, time.time()))
            return
        # Also what ends it from elsewhere has to give the terminal's screen back.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        console = Console(highlight=False)
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    _show(live, console, client, cursor, rates, events)
                    time.sleep(_REFRESH_S)
        except KeyboardInterrupt:
            return


def _show(
    live: Live,
    console: Console,
    client: SteadyClient,
    cursor: EventCursor,
    rates: TokenRates,
    events: deque[Event],
) -> None:
    status: dict[str, Any] | None = client.status()
    if status is None:
        live.update(Text("lmx does not answer; waiting for it to come back"), refresh=True)
        return
    events.extend(event for _, event in cursor.read(client))
    rates.take(status["workers"], time.monotonic())
    frame = top_frame(status, rates, events, (console.width, console.height), time.time())
    live.update(frame, refresh=True)
