"""How long a graceful stop may take. The time-outs of launchd and systemd must be longer. This
module is pure."""

import sys
from typing import Final

from lmx.supervisor.config.schema import TimingConfig

ROUTER_EXIT_S: Final = 10.0
"""How long a router has after its grace to send the error events of requests that were cut off, and
to end. It needs hundredths of a second, but a machine may have no processor for it. Its own bounds
are within this one (`router/server/process.py`): a router that is only slow is not killed."""

FETCH_GRACE_S: Final = 10.0
"""How long a fetch has to end after SIGTERM. Fetches end at the same time as the workers."""

_SLACK_S: Final = 3.0
"""The time for ticks, reaping, closing sockets, and a second SIGKILL."""


_TERM_GRACE_S: Final = 5.0
_MAC_TERM_GRACE_S: Final = 20.0
"""A worker on a Mac leaves its step and unwires its memory before it ends: 18 s at most."""


def term_grace_s(timing: TimingConfig, platform: str = sys.platform) -> float:
    """Return how long a worker has from SIGTERM to SIGKILL."""
    if timing.term_grace_s is not None:
        return timing.term_grace_s
    return _MAC_TERM_GRACE_S if platform == "darwin" else _TERM_GRACE_S


def stop_bound_s(timing: TimingConfig, platform: str = sys.platform) -> float:
    """Return the most seconds from SIGTERM to the supervisor's exit, with every process gone.
    A worker that SIGKILL does not end is left after some ten seconds more.

    The router's requests have ``shutdown_grace_s``. After that the workers end within the longest
    of their graces, or are killed then.
    """
    workers_s = max(term_grace_s(timing, platform), timing.abort_grace_s, FETCH_GRACE_S)
    return timing.shutdown_grace_s + ROUTER_EXIT_S + workers_s + _SLACK_S
