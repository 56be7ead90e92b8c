"""One router as the supervisor sees it, and how one is ended that was replaced. Values only."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S
from lmx.supervisor.state.process_records import RouterRecord


@dataclass(slots=True)
class RouterProcess:
    """A running router."""

    record: RouterRecord
    started_s: float

    beat_at_s: float
    """When its last heartbeat came. Before the first, when it was started or adopted."""

    port: int
    """0 until the router has said its port."""

    adopted: bool
    """Whether an earlier supervisor started it."""

    shutdown_grace_s: float
    """For how long its requests may continue after SIGTERM, as its spec says."""

    has_reported: bool
    """Whether it has sent anything. From then on the supervisor waits for its heartbeats, and
    before that for its start."""

    streams: int = 0
    waiting: int = 0
    requests_total: int = 0
    memory_bytes: int = 0

    retired: bool = False
    """Whether it was replaced, and takes no more requests."""

    stacks_at_s: float | None = None
    """When it will get the signal to write its stacks; None if that is not planned."""

    kill_at_s: float | None = None
    """When it will get SIGKILL; None if that is not planned."""

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.record.pid


@dataclass(slots=True)
class Retiring:
    """A router that was replaced."""

    router: RouterProcess

    signals: tuple[tuple[float, signal.Signals], ...]
    """The signals that are still to be sent, each with its time."""


def retiring_signals(
    router: RouterProcess, timing: TimingConfig
) -> tuple[tuple[float, signal.Signals], ...]:
    """Return the signals for a router that was replaced, each with the seconds from now.

    After SIGUSR1 it accepts no more connections and ends with its last request. After SIGTERM the
    requests that are left get ``shutdown_grace_s`` and then an error event. SIGTERM is sent so
    early that this error comes when ``drain_timeout_s`` is over. SIGKILL is for a router that did
    not end by itself.
    """
    term_s = max(0.0, timing.drain_timeout_s - router.shutdown_grace_s)
    kill_s = term_s + router.shutdown_grace_s + ROUTER_EXIT_S
    return ((0.0, signal.SIGUSR1), (term_s, signal.SIGTERM), (kill_s, signal.SIGKILL))
