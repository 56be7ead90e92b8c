"""Processor time and memory of a server of this machine, found by the port that it listens on.

Workers of lmx that outlived their supervisor descend from nothing that listens: they are found by
their home."""

from contextlib import suppress
from urllib.parse import urlsplit

import psutil

from lmx.protocol.web_origins import is_loopback
from lmx.supervisor.processes.descendants import of_same_home


class ServerProcesses:
    """The processes that listen on a port, and all that descend from them."""

    def __init__(self, roots: list[psutil.Process]) -> None:
        self._roots = roots

    @classmethod
    def at(cls, url: str) -> "ServerProcesses | None":
        """Return those of the server at ``url``; None if it is on another machine, or belongs to
        another user. It looks at all processes, which takes a part of a second."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if not is_loopback(parts.hostname or ""):
            return None
        owners = [process for process in psutil.process_iter() if _listens(process, port)]
        if not owners:
            return None
        return cls([*owners, *(each for one in owners for each in of_same_home(one))])

    def cpu_s(self) -> float:
        """Return the processor time of all of them until now, of ended children too."""
        used_s = 0.0
        for process in self._all():
            with suppress(psutil.Error):
                times = process.cpu_times()
                # On macOS no time of ended children is known: they are 0 there.
                used_s += times.user + times.system + times.children_user + times.children_system
        return used_s

    def memory_bytes(self) -> int:
        """Return the memory of all of them. What several share is counted once on Linux (PSS), and
        in each of them elsewhere (RSS)."""
        taken = 0
        for process in self._all():
            with suppress(psutil.Error):
                found = process.memory_full_info()
                taken += getattr(found, "pss", None) or found.rss
        return taken

    def _all(self) -> set[psutil.Process]:
        found: set[psutil.Process] = set()
        for root in self._roots:
            with suppress(psutil.Error):
                found |= {root, *root.children(recursive=True)}
        return found


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for each in process.net_connections("tcp")
        )
    except psutil.Error:
        return False
