"""One router as the supervisor sees it, and how one that was replaced is ended. Values only."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import ROUTER_FAREWELL_S
from lmx.supervisor.state.process_records import RouterRecord


@dataclass(slots=True)
class RouterProcess:
    """A running router. ``port`` is 0 until it has said so. ``shutdown_grace_s`` is what it was
    told at its start: for so long its requests may go on after SIGTERM. ``heard``: it has said
    something, so that from now on its beats are waited for, not its start."""

    record: RouterRecord
    started_s: float
    beat_at_s: float
    port: int
    adopted: bool
    shutdown_grace_s: float
    heard: bool
    streams: int = 0
    waiting: int = 0
    requests_total: int = 0
    memory_bytes: int = 0
    abort_at_s: float | None = None
    kill_at_s: float | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        return self.record.pid


@dataclass(slots=True)
class Retiring:
    """A router that was replaced: ``signals`` are still to be sent, each at its time."""

    router: RouterProcess
    signals: tuple[tuple[float, signal.Signals], ...]


def retiring_signals(
    router: RouterProcess, timing: TimingConfig
) -> tuple[tuple[float, signal.Signals], ...]:
    """Return what a router that was replaced is sent, and how many seconds from now.

    SIGUSR1: it takes no more connections and ends with its last request. SIGTERM: what is left
    gets ``shutdown_grace_s``, then an error event; sent so that this comes when
    ``drain_timeout_s`` is over. SIGKILL: it did not end by itself.
    """
    term_s = max(0.0, timing.drain_timeout_s - router.shutdown_grace_s)
    kill_s = term_s + router.shutdown_grace_s + ROUTER_FAREWELL_S
    return ((0.0, signal.SIGUSR1), (term_s, signal.SIGTERM), (kill_s, signal.SIGKILL))
