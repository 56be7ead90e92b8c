"""The files in which the supervisor keeps its processes and operators' orders, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmx.supervisor.events import Events
from lmx.supervisor.state.disk_retry import DiskRetry
from lmx.supervisor.state.drained import Holds
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.pins import Pins
from lmx.supervisor.state.process_records import Records


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The files of one home, and what changes them."""

    disk: DiskRetry
    """It retries the changes of files that failed."""

    records: Records
    """The records of the processes that run."""

    pins: Pins
    """The models that operators pinned and unpinned."""

    holds: Holds
    """The models that operators drained."""

    @classmethod
    def of(cls, home: Home, events: Events, say: Callable[[str], None]) -> StateFiles:
        """Return the files of a home. ``say`` tells people about a file that can't be read."""
        disk = DiskRetry(events)
        records = Records(home.state, disk.change, say)
        return cls(disk, records, Pins(home.pins, say), Holds(home.holds, say))
