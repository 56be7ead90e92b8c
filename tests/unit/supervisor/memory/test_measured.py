"""What is remembered of models, and under which name."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.memory.inspect_main import read_model_files
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import settings_key
from tests.support.models.model_folders import write_model


def test_it_survives_a_restart_and_keeps_the_highest_peak(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    measured = Measured.load(path)
    assert measured.lookup("a") is None
    measured.record("a", 100, 0)
    measured.record("a", 90, 300)
    measured.record("a", 0, 200)
    measured.record("b", 0, 200)
    measured.record("", 100, 200)
    for found in (measured, Measured.load(path)):
        entry = found.lookup("a")
        assert entry is not None
        assert (entry.static_bytes, entry.peak_bytes) == (90, 300)
        assert found.lookup("b") is None, "a peak alone says nothing of the load"
        assert found.lookup("") is None
    assert list(tmp_path.iterdir()) == [path], "nothing else is left"


def test_the_oldest_go(tmp_path: Path) -> None:
    measured = Measured.load(tmp_path / "measured.json")
    for number in range(200):
        measured.record(f"k{number}", 1, 1)
    measured.record("k0", 2, 2)
    measured.record("new", 1, 1)
    again = Measured.load(tmp_path / "measured.json")
    for found in (measured, again):
        assert found.lookup("k1") is None
        assert found.lookup("k0") is not None
        assert found.lookup("new") is not None


@pytest.mark.parametrize(
    "content",
    [
        b"{", b"[]", b'{"a": 1}', b'{"a": {}}', b"\xff\xfe", b'"x"',
        b'{"a": {"static_bytes": -1, "peak_bytes": 0, "measured_at_s": 0}}',
        b'{"a": {"static_bytes": 1, "peak_bytes": 0, "measured_at_s": 1%s}}' % (b"0" * 400),
        b'{"a": {"static_bytes": "x", "peak_bytes": 0, "measured_at_s": 0}}',
        b'{"a": {"static_bytes": 1, "peak_bytes": true, "measured_at_s": 0}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        measured = Measured.load(path)
    assert [line["event"] for line in logs] == ["state.quarantined"]
    assert (tmp_path / "measured.json.damaged").read_bytes() == content
    measured.record("a", 1, 2)
    assert json.loads(path.read_text())["a"]["peak_bytes"] == 2


def test_a_file_that_cannot_be_written_costs_a_log_line(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    measured = Measured.load(tmp_path / "none" / "measured.json")
    with structlog.testing.capture_logs() as logs:
        measured.record("a", 1, 2)
    assert [line["event"] for line in logs] == ["measured.write_failed"]
    assert measured.lookup("a") is not None


def key(folder: Path, context_tokens: int | None = 10, **model: Any) -> str:
    config = ModelConfig.model_validate({"id": "m", "source": str(folder), **model})
    files = read_model_files(folder, ModelKind.CHAT, MLX_ENGINE)
    return settings_key(config, ModelKind.CHAT, files, context_tokens, None)


def test_a_key_changes_with_what_memory_depends_on(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    keys = [
        key(folder),
        key(folder, 11),
        key(folder, concurrency=3),
        key(folder, max_rows=3),
        key(folder, prefix_cache={"enabled": False}),
        key(folder, engine="a:b"),
        key(folder, engine_options={"x": 1}),
        key(write_model(tmp_path / "other")),
    ]
    assert len(set(keys)) == len(keys)
    assert key(folder, pinned=True, aliases=["z"], max_queue=3) == keys[0]
    changed = (folder / "model.safetensors").stat().st_mtime_ns + 1
    os.utime(folder / "model.safetensors", ns=(changed, changed))
    assert key(folder) not in keys


def test_a_snapshot_of_the_hub_is_known_by_its_commit(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models--a--b" / "snapshots" / "c0ffee")
    before = key(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert key(folder) == before
    assert key(folder.rename(folder.with_name("decaf"))) not in ("", before)
