"""How long a graceful stop may take. Pure; launchd's and systemd's time-outs must be longer."""

from __future__ import annotations

from typing import Final

from lmx.supervisor.config.schema import TimingConfig

ROUTER_FAREWELL_S: Final = 2.0
"""After its grace: to send the error events of requests that were cut off, and to end."""

FETCH_GRACE_S: Final = 10.0
"""For a fetch to end after SIGTERM. Fetches end while the workers do."""

_SLACK_S: Final = 3.0
"""Ticks, reaping, closing sockets, and SIGKILL once more."""


def stop_bound_s(timing: TimingConfig) -> float:
    """Return the most seconds from SIGTERM to the supervisor's exit, with every process gone.

    The router's requests have ``shutdown_grace_s``; after it workers end within the longest of
    their graces, and are killed then.
    """
    workers_s = max(timing.term_grace_s, timing.abort_grace_s, FETCH_GRACE_S)
    return timing.shutdown_grace_s + ROUTER_FAREWELL_S + workers_s + _SLACK_S
