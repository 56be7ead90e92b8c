"""Operators' pins on disk."""

from pathlib import Path

from lmx.supervisor.state.files import Pins


def test_pins_outlive_who_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "state" / "pins.json"
    assert Pins(path).load() == {}
    Pins(path).save({"b": False, "a": True})
    assert Pins(path).load() == {"a": True, "b": False}
    assert [entry.name for entry in path.parent.iterdir()] == ["pins.json"]
    Pins(path).save({})
    assert Pins(path).load() == {}


def test_a_disk_that_takes_nothing_stops_nobody_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    path = tmp_path / "state" / "pins.json"
    assert (Pins(path).save({"a": True}) or "").startswith(f"{path}: ")
    (tmp_path / "state").unlink()
    assert Pins(path).save({"a": True}) is None
