"""How far a download is, in bytes: counted by several threads, reported as one."""

from __future__ import annotations

import threading
from typing import Literal, Protocol

Phase = Literal["download", "convert", "check"]


class Report(Protocol):
    """Tells how far a fetch is. ``fraction`` of 1, None where it can't be told. The bytes are of
    all that is wanted, also of what was there before; given once, they hold on."""

    def __call__(
        self,
        phase: Phase,
        fraction: float | None,
        detail: str,
        *,
        done_bytes: int | None = None,
        total_bytes: int | None = None,
    ) -> None: ...


class Counted:
    """The bytes of one download. The first report is made at once, so that its size is known."""

    def __init__(self, report: Report, name: str, total_bytes: int, done_bytes: int) -> None:
        self._report = report
        self._name = name
        self._total_bytes = total_bytes
        self._done_bytes = done_bytes
        self._lock = threading.Lock()
        self.advanced(0)

    def advanced(self, count_bytes: int) -> None:
        """So many more have come; less than 0 where some were thrown away."""
        with self._lock:
            self._done_bytes += count_bytes
            done_bytes, total_bytes = self._done_bytes, self._total_bytes
        self._report(
            "download",
            done_bytes / total_bytes if total_bytes else 1.0,
            f"{self._name}: {done_bytes / 1e9:.2f} of {total_bytes / 1e9:.2f} GB",
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )


def gb(count_bytes: int) -> str:
    """Return a size as the hub's pages write it, in units of 1000."""
    return f"{count_bytes / 1e9:.2f} GB"
