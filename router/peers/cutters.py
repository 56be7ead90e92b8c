"""Cuts the bytes of a peer's answer into what its client gets and the record behind it, in which
the peer says what it has counted. Pure."""

from typing import Final

from lmx.router.http.outcome import RECORD

_MOST_RECORD_BYTES: Final = 1024
"""No record behind a file is longer: it has ten figures."""


class EventCutter:
    """Cuts the bytes of a stream into whole events, which end with ``end``, and the record behind
    them. What it holds is not searched twice."""

    def __init__(self, end: bytes, *, has_record: bool) -> None:
        self._end = end
        self._has_record = has_record
        self._held = bytearray()
        self._in_record = False

    def cut(self, chunk: bytes) -> bytes:
        """Return the events that are whole with these bytes; the last one too, whole or not, if the
        record begins. Whitespace where an event would begin is returned at once: it may be a ping
        without an end of its own."""
        begin = len(self._held)
        self._held += chunk
        if self._in_record:
            return b""
        if self._has_record and (at := self._held.find(RECORD, begin)) >= 0:
            self._in_record = True
            return self._taken(at, at + len(RECORD))
        # An end may have begun in the bytes before.
        at = self._held.rfind(self._end, max(0, begin + 1 - len(self._end)))
        whole = self._taken(at + len(self._end), at + len(self._end)) if at >= 0 else b""
        if self._held.isspace():
            whole += self._taken(len(self._held), len(self._held))
        return whole

    def _taken(self, size_bytes: int, gone_bytes: int) -> bytes:
        whole = bytes(self._held[:size_bytes])
        del self._held[:gone_bytes]
        return whole

    @property
    def held_bytes(self) -> int:
        """How much has come and was not returned."""
        return len(self._held)

    @property
    def rest(self) -> bytes:
        """The beginning of an event that did not end."""
        return b"" if self._in_record else bytes(self._held)

    @property
    def record(self) -> bytes:
        """What has come of the record."""
        return bytes(self._held) if self._in_record else b""


class FileCutter:
    """Cuts the bytes of a file from the record behind them. A file may have any byte, and the
    record has no ``RECORD`` but its first: so the last one begins it."""

    def __init__(self) -> None:
        self._held = bytearray()

    def cut(self, chunk: bytes) -> bytes:
        """Return the bytes that are no part of the record, whatever comes."""
        self._held += chunk
        at = self._held.find(RECORD, max(0, len(self._held) - _MOST_RECORD_BYTES))
        size_bytes = len(self._held) if at < 0 else at
        part = bytes(self._held[:size_bytes])
        del self._held[:size_bytes]
        return part

    def end(self) -> tuple[bytes, bytes]:
        """Return the last bytes of the file, and the record; empty if there is none."""
        part, begin, record = bytes(self._held).rpartition(RECORD)
        return (part, record) if begin and record.startswith(b"{") else (bytes(self._held), b"")
