"""What Time Machine is told, with a C library that remembers it."""

import ctypes
import plistlib
import sys
from pathlib import Path
from typing import Any

import pytest

from lmx.supervisor.state.home import keep_out_of_backups


def test_a_macs_backups_leave_a_folder_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reported: list[tuple[Any, ...]] = []

    class Library:
        def setxattr(self, *given: Any) -> int:
            reported.append(given)
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(sys, "platform", "linux")
    keep_out_of_backups(tmp_path / "cache")
    assert not reported
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_out_of_backups(tmp_path / "cache")
    ((folder, name, value, size, *rest),) = reported
    assert Path(folder.decode()).is_dir()
    assert name == b"com.apple.metadata:com_apple_backup_excludeItem"
    assert plistlib.loads(value) == "com.apple.backupd"
    assert (size.value, rest) == (len(value), [0, 0])
