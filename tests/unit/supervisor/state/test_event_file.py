"""Events outlive the supervisor, within bounds, whatever the disk and the file are like."""

import os
from pathlib import Path

import pytest

from lmx.protocol.messages.control import Event
from lmx.supervisor.state import event_file
from lmx.supervisor.state.event_file import EventFile


def event(number: int) -> Event:
    return Event(number, 1e9 + number, "worker.ready", "a", f"event {number}", {"n": number})


def test_events_are_read_as_they_were_kept(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.keep("e1", event(1))
    file.keep("e2", event(1))
    assert EventFile(tmp_path / "events.jsonl").read() == [("e1", event(1)), ("e2", event(1))]


def test_the_older_half_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "_MOST_BYTES", 2000)
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for number in range(200):
        file.keep("e1", event(number))
    assert path.stat().st_size < 2200
    kept = [one.seq for _, one in file.read()]
    assert kept == list(range(kept[0], 200))
    assert len(kept) > 3


def test_garbage_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventFile(path).keep("e1", event(1))
    path.write_bytes(
        path.read_bytes() + b'{"epoch": 1}\n\xff\xfe\n[]\n{"seq": 1e999}\n{"epoch": "e1", "seq"'
    )
    assert EventFile(path).read() == [("e1", event(1))]


def test_a_folder_in_its_place_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    assert EventFile(tmp_path / "events.jsonl").read() == []
    EventFile(tmp_path / "events.jsonl").keep("e1", event(1))
    assert len(EventFile(tmp_path / "events.jsonl").read()) == 1


def test_a_disk_that_takes_nothing_stops_nothing(tmp_path: Path) -> None:
    EventFile(tmp_path / "gone" / "events.jsonl").keep("e1", event(1))


def test_a_file_that_is_too_large_is_set_aside_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n" * 9_500_000)
    file = EventFile(path)
    assert file.read() == []
    for number in range(3):
        file.keep("e1", event(number))
    assert [one.seq for _, one in file.read()] == [0, 1, 2]
    assert (tmp_path / "events.jsonl.damaged").stat().st_size == 9_500_000


def test_an_event_that_cant_be_written_stops_nothing(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.keep("e1", Event(1, 0.0, "worker.ready", "a", "", {"what": object()}))
    file.keep("e1", event(2))
    assert [one.seq for _, one in file.read()] == [2]


def test_only_the_owner_reads_the_events_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        EventFile(tmp_path / "events.jsonl").keep("e1", event(1))
    finally:
        os.umask(before)
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600
