"""What is written so that it outlasts a power cut."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from lmx.protocol.host.disk_sync import sync

FULL = 51


@pytest.mark.parametrize(
    ("has_full", "refused", "expected"),
    [(False, False, ["fsync"]), (True, False, [FULL]), (True, True, [FULL, "fsync"])],
)
def test_the_drive_s_cache_is_emptied_where_the_system_can(
    has_full: bool,
    refused: bool,
    expected: list[int | str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int | str] = []

    def full_sync(_: int, command: int) -> int:
        calls.append(command)
        if refused:
            raise OSError(errno.ENOTSUP, "not on a volume in the network")
        return 0

    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    if has_full:
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
    assert calls == expected
