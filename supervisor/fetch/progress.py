"""Counts how far a download is, in bytes. Several threads count, and one figure is reported."""

import threading
from typing import Literal, Protocol

Phase = Literal["download", "convert", "check"]


class Report(Protocol):
    """A function that reports how far a fetch is. ``fraction`` is from 0 to 1, None if it is not
    known. The bytes are those of all files that are wanted, with what was there before. Bytes that
    were given once hold for later reports too."""

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
    """Counts the bytes of one download. The first report comes at once, so that the size is
    known."""

    def __init__(self, report: Report, name: str, total_bytes: int, done_bytes: int) -> None:
        self._report = report
        self._name = name
        self._total_bytes = total_bytes
        self._done_bytes = done_bytes
        self._lock = threading.Lock()
        self.advanced(0)

    def advanced(self, count_bytes: int) -> None:
        """Count more bytes that have arrived. The number is negative if bytes were thrown away."""
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
