"""The owner of what routers have counted since lmx started, with those that have ended."""

from collections.abc import Callable, Set

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.counts import CountsKept, KeyUsage, ReportCounts, Tally, added, greatest


class RouterCounts:
    """Keeps the last report of each router that runs, and the sum of those that have ended.

    A router that is killed loses what it counted since its last report. When this supervisor dies,
    the next one gets all counts from the routers, except those of a router that ended in between.
    ``pids`` returns those of the routers that run. ``since_s`` is Unix time.
    """

    def __init__(self, since_s: float, pids: Callable[[], Set[int]]) -> None:
        self.since_s = since_s
        self._pids = pids
        self._ended: tuple[Tally, ...] = ()
        self._revision = 1
        self._running: dict[int, ReportCounts] = {}
        self._usage: dict[int, tuple[float, tuple[KeyUsage, ...]]] = {}
        """The latest usage of each router and when it came. The routers are in the order of their
        first reports."""

    def take_report(self, report: ReportCounts, now_s: float) -> CountsKept:
        """Take a router's report, and return what the others have counted. Raises
        :class:`LmxError` (not_running) for a process that is no router of this supervisor."""
        pids = self._pids()
        if report.pid not in pids:
            raise LmxError(ErrorCode.NOT_RUNNING, "this is no router of lmx's")
        if report.seen == 0 and report.ended:
            self._ended = greatest(self._ended, report.ended)
            self._revision += 1
        if report.since_s is not None:
            self.since_s = min(self.since_s, report.since_s)
        self._running[report.pid] = report
        inherited = self._inherited(report.pid, now_s) if report.fresh else ()
        # A router that gets no requests may never report what it inherits here.
        self._usage[report.pid] = (now_s, (*inherited, *report.usage))
        others = [other for pid, other in self._running.items() if pid != report.pid]
        return CountsKept(
            self._revision,
            self.since_s,
            ended=None if report.seen == self._revision else self._ended,
            others=added(*(other.tallies for other in others)),
            elsewhere=_under_way(others),
            inherited=inherited,
            others_run=len(pids) > 1,
        )

    def router_ended(self, pid: int) -> None:
        """Add the counts of a router that has ended to the sum of the ended ones."""
        report = self._running.pop(pid, None)
        if report is not None:
            self._ended = added(self._ended, report.tallies)
            self._revision += 1
        # The next router inherits it, until there is a newer one.
        newest = next(reversed(self._usage), None)
        self._usage = {
            known: usage
            for known, usage in self._usage.items()
            if known in self._running or known == newest
        }

    def _inherited(self, pid: int, now_s: float) -> tuple[KeyUsage, ...]:
        """Return the usage of the newest other router, which had inherited in its turn."""
        for known, (at_s, usage) in reversed(self._usage.items()):
            if known != pid:
                age_s = max(0.0, now_s - at_s)
                return tuple(
                    KeyUsage(one.asker, one.requests, one.tokens, 0, one.age_s + age_s)
                    for one in usage
                )
        return ()


def _under_way(reports: list[ReportCounts]) -> tuple[KeyUsage, ...]:
    running: dict[str, int] = {}
    for report in reports:
        for one in report.usage:
            if one.running:
                running[one.asker] = running.get(one.asker, 0) + one.running
    return tuple(KeyUsage(asker, running=number) for asker, number in running.items())
