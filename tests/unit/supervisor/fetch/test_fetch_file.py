"""A file that is downloaded while others fill the disk."""

import errno
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.supervisor.fetch import file as fetch_file_module
from lmx.supervisor.fetch.errors import explained
from lmx.supervisor.fetch.file import SPARE_BYTES, HubFile, fetch_file, part_of


def test_a_disk_that_others_fill_meanwhile_keeps_some_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    free_bytes = [SPARE_BYTES + 1, SPARE_BYTES, SPARE_BYTES - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(0, 0, free_bytes.pop(0)))
    monkeypatch.setattr(fetch_file_module, "_DISK_LOOK_BYTES", 100)
    piece = b"x" * 50

    def get(_url: str, part: Any, file: HubFile) -> None:
        for _ in range(file.size_bytes // len(piece)):
            part.write(piece)

    monkeypatch.setattr(fetch_file_module, "_get", get)
    blob = tmp_path / "blob"
    wanted = HubFile("m.safetensors", 20 * len(piece), "0" * 64)
    with pytest.raises(OSError, match="space") as full:
        fetch_file("http://hub", wanted, blob, tmp_path / "lock", lambda _: None)
    assert full.value.errno == errno.ENOSPC
    assert explained(full.value, "org/m", None).code is ErrorCode.INSUFFICIENT_DISK
    assert (part_of(blob).read_bytes(), blob.exists()) == (piece * 6, False)
